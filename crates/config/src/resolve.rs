//! Config is proven once: sources in, a recipe or every error out.
//!
//! The recipe is filled row by row from the table of keys (a setting, or else the default, which
//! may be derived from rows above), then the rules between keys are checked on the filled recipe.

use crate::error::{ConfigError, ConfigErrors};
use crate::key::{Applies, Default as KeyDefault, Key};
use crate::keys;
use crate::recipe::{
    Data, Dtype, Emulate, Family, IsaChoice, Isolation, LrSchedule, Model, Numerics, Optim,
    OptimName, Parallel, Precision, Recipe, Recompute, Reduction, Run, Source, Tokenizer, Train,
    TransportChoice,
};
use crate::rules;
use crate::sources::{Complaint, Gathered, Sources};
use crate::units::{Bytes, BytesPerSecond, Seconds};
use crate::value::{Given, Value};

/// Proves a recipe, or lists everything that is wrong with it.
pub fn resolve(sources: &Sources) -> Result<Recipe, ConfigErrors> {
    let mut gathered = Gathered::from_sources(sources);
    let recipe = fill(&gathered);
    let complaints = std::mem::take(&mut gathered.complaints);
    let mut errors: Vec<ConfigError> =
        complaints.into_iter().map(|complaint| advise(complaint, &recipe)).collect();
    if !gathered.incomplete {
        errors.extend(rules::broken(&recipe, &gathered));
    }
    if errors.is_empty() { Ok(recipe) } else { Err(ConfigErrors { errors }) }
}

impl Default for Recipe {
    /// The recipe of nobody's wishes: every key at its default.
    fn default() -> Self {
        fill(&Gathered::default())
    }
}

fn fill(gathered: &Gathered) -> Recipe {
    let mut recipe = blank();
    for key in keys::all() {
        // A setting that means nothing here keeps its default, so that recipes that do the same
        // are the same.
        let setting = match obstacle(key, &recipe) {
            None => gathered.settings.get(key.name),
            Some(_) => None,
        };
        let value = setting.map(|setting| setting.value.clone()).or_else(|| default(key, &recipe));
        if let Some(value) = value {
            (key.field.set)(&mut recipe, &value);
        }
    }
    recipe
}

/// The other key and its value that make this one meaningless, if so.
pub(crate) fn obstacle(key: &Key, recipe: &Recipe) -> Option<(&'static str, Value)> {
    let Applies::When { key: other, is } = key.applies else { return None };
    let value = keys::find(other)?.get(recipe)?;
    (!is.contains(&value.as_text())).then_some((other, value))
}

fn default(key: &Key, recipe: &Recipe) -> Option<Value> {
    match key.default {
        KeyDefault::Nothing => None,
        KeyDefault::Derived { from, .. } => Some(from(recipe)),
        KeyDefault::Fixed(text) => {
            let value = key.kind.accept(&Given::from_argument(text));
            Some(value.unwrap_or_else(|refusal| panic!("default of {}: {refusal:?}", key.name)))
        }
    }
}

/// Completes a complaint: where the kind had no advice, what the key holds without the wrong value
/// is a value that works.
fn advise(complaint: Complaint, recipe: &Recipe) -> ConfigError {
    let Complaint { mut error, key } = complaint;
    if error.fix.is_empty() {
        let held = key.and_then(|key| key.get(recipe)).map(|value| value.to_string());
        let listed = || key.and_then(|key| key.kind.first_choice());
        error.fix = match held.or_else(listed) {
            Some(value) => format!("try {value}"),
            None => "remove it".to_owned(),
        };
    }
    error
}

/// Something to fill: every field is overwritten from the table before anybody sees it.
fn blank() -> Recipe {
    Recipe {
        model: Model {
            family: Family::Gpt2,
            layers: 0,
            width: 0,
            heads: 0,
            kv_heads: 0,
            ffn: 0,
            vocab: 0,
            context: 0,
            tied: true,
            dropout: -1.0,
            norm_eps: -1.0,
            rope_theta: -1.0,
        },
        data: Data {
            source: Source::Path(String::new()),
            tokenizer: Tokenizer::Byte,
            validation: -1.0,
        },
        train: Train {
            steps: 0,
            batch: 0,
            microbatch: 0,
            seed: 0,
            eval_every: u64::MAX,
            eval_batches: 0,
            reduction: Reduction::Sum,
            max_skipped: u64::MAX,
        },
        optim: Optim {
            name: OptimName::Sgd,
            lr: -1.0,
            weight_decay: -1.0,
            clip: -1.0,
            warmup_steps: u64::MAX,
            schedule: LrSchedule::Constant,
            final_lr_fraction: -1.0,
            beta1: -1.0,
            beta2: -1.0,
            eps: -1.0,
            momentum: -1.0,
        },
        precision: Precision { compute: Dtype::F32 },
        numerics: Numerics { invariant_up_to: 0 },
        run: Run {
            workers: 0,
            threads: usize::MAX,
            isolation: Isolation::Threads,
            transport: TransportChoice::Tcp,
            encrypt: true,
            deadline: Seconds(-1.0),
            check_replicas_every: u64::MAX,
            isa: IsaChoice::Portable,
            dir: "unset".to_owned(),
            save_optimizer: true,
        },
        parallel: Parallel {
            data: 0,
            zero: u8::MAX,
            recompute: Recompute::Every(0),
            bucket_bytes: Bytes(u64::MAX),
            overlap: false,
            shares: vec![0],
        },
        emulate: Emulate { bandwidth: BytesPerSecond(-1.0) },
    }
}
