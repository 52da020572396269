//! Resolution: from sources to a recipe, or to all errors.
//!
//! The recipe is filled row by row from the key table (a setting, or else the default, which may be
//! derived from rows above). Then the rules between keys are checked on the filled recipe.

use crate::conditions::unmet_condition;
use crate::error::{ConfigError, ConfigErrors};
use crate::key::{Default as KeyDefault, Key};
use crate::keys;
use crate::recipe::{
    AggregationRule, AverageScope, ByzantineAttack, Checkpoint, Compress, CompressMethod,
    Compression, Consistency, Data, DecayShape, Documents, Dtype, EmbeddingRows, Emulate, EpochEnd,
    Family, Federated, FederatedMethod, FederatedServer, Gossip, GraphName, Interval, IsaChoice,
    Isolation, LateGradients, LossScale, LossScaling, LrScaling, LrSchedule, Model, Numerics,
    Offload, Optim, OptimName, Order, Outer, Parallel, Partition, PipelineSchedule, Placement,
    Precision, Problem, Recipe, Recompute, Reduction, RowSharding, Run, Server, Source,
    StaleGradients, StalenessRule, StalenessWeight, StragglerPolicy, Stragglers, Sync, SyncMode,
    SyncPartition, Tokenizer, Train, TransportChoice, ValidationSource,
};
use crate::rules;
use crate::sources::{MergedSources, ModelFolder, PendingError, Sources};
use crate::units::{Bytes, Seconds};
use crate::value::{RawValue, Value};

/// Resolves a recipe, or returns all errors.
pub fn resolve(sources: &Sources) -> Result<Recipe, ConfigErrors> {
    validate(MergedSources::from_sources(sources))
}

/// Resolves a recipe whose `model.from` names a folder. The model of the folder replaces defaults
/// and presets, and explicit settings must not contradict it. The caller reads the folder, so that
/// this remains a pure function.
pub fn resolve_with(sources: &Sources, folder: &ModelFolder) -> Result<Recipe, ConfigErrors> {
    let mut merged = MergedSources::from_sources(sources);
    merged.take_model_of_folder(folder);
    validate(merged)
}

/// The folder whose model the recipe takes over: `model.from` of these sources, unless
/// `model.partial` loads only matching weights.
pub fn model_from(sources: &Sources) -> Option<String> {
    let settings = MergedSources::from_sources(sources).settings;
    let is_partial = settings.get("model.partial").is_some_and(|setting| setting.value.as_bool());
    let from = settings.get("model.from").filter(|_| !is_partial);
    from.map(|setting| setting.value.as_text().to_owned())
}

impl Sources {
    /// Whether the recipe file or an argument sets a key; a preset does not count.
    pub fn sets_explicitly(&self, key: &str) -> bool {
        let settings = MergedSources::from_sources(self).settings;
        settings.get(key).is_some_and(|setting| setting.origin.is_explicit())
    }
}

fn validate(mut merged: MergedSources) -> Result<Recipe, ConfigErrors> {
    let recipe = fill(&merged);
    let pending_errors = std::mem::take(&mut merged.pending_errors);
    let mut errors: Vec<ConfigError> =
        pending_errors.into_iter().map(|pending| with_fix(pending, &recipe)).collect();
    if !merged.incomplete {
        errors.extend(rules::broken(&recipe, &merged));
    }
    if errors.is_empty() { Ok(recipe) } else { Err(ConfigErrors { errors }) }
}

impl Default for Recipe {
    /// The recipe with every key at its default.
    fn default() -> Self {
        fill(&MergedSources::default())
    }
}

fn fill(merged: &MergedSources) -> Recipe {
    let mut recipe = blank();
    for key in keys::all() {
        // A setting without effect is ignored, so that equivalent recipes are equal.
        let value = match unmet_condition(key, &recipe) {
            None => merged.settings.get(key.name).map(|setting| setting.value.clone()),
            Some(_) => key.inactive.map(Value::Integer),
        };
        let value = value.or_else(|| default(key, &recipe));
        if let Some(value) = value {
            (key.field.set)(&mut recipe, &value);
        }
    }
    recipe
}

fn default(key: &Key, recipe: &Recipe) -> Option<Value> {
    match key.default {
        KeyDefault::Nothing => None,
        KeyDefault::Derived { from, .. } => Some(from(recipe)),
        KeyDefault::Fixed(text) => {
            let value = key.value_type.accept(&RawValue::from_argument(text));
            Some(value.unwrap_or_else(|refusal| panic!("default of {}: {refusal:?}", key.name)))
        }
    }
}

/// Completes an error without a fix: the value that the key has without the invalid one works.
fn with_fix(pending: PendingError, recipe: &Recipe) -> ConfigError {
    let PendingError { mut error, key } = pending;
    if error.fix.is_empty() {
        let present = key.and_then(|key| key.get(recipe)).map(|value| value.to_string());
        let listed = || key.and_then(|key| key.value_type.first_choice());
        error.fix = match present.or_else(listed) {
            Some(value) => format!("try {value}"),
            None => "remove it".to_owned(),
        };
    }
    error
}

/// A placeholder recipe; every field is overwritten from the key table.
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
            problem: Problem::NONE,
        },
        from: String::new(),
        partial: false,
        max_positions: None,
        data: blank_data(),
        train: Train {
            steps: 0,
            batch: 0,
            microbatch_size: 0,
            microbatch_is_auto: false,
            seed: 0,
            eval_every: u64::MAX,
            eval_batches: 0,
            reduction: Reduction::Sum,
            max_skipped: u64::MAX,
            batch_schedule: Vec::new(),
            target_loss: None,
        },
        optim: blank_optim(),
        precision: blank_precision(),
        numerics: Numerics { invariant_up_to: 0, invariant_tensor_up_to: 0 },
        run: Run {
            workers: 0,
            elastic: None,
            rejoin: Seconds(-1.0),
            threads: usize::MAX,
            isolation: Isolation::Threads,
            transport: TransportChoice::Tcp,
            encrypt: true,
            deadline: Seconds(-1.0),
            check_replicas_every: u64::MAX,
            isa: IsaChoice::Portable,
            dir: "unset".to_owned(),
            save_optimizer: true,
            restarts: u64::MAX,
        },
        parallel: blank_parallel(),
        sync: blank_sync(),
        compress: blank_compress(),
        federated: blank_federated(),
        offload: Offload::none(),
        checkpoint: Checkpoint {
            dir: String::new(),
            every: 0,
            interval: Interval::Never,
            keep: 0,
            background: false,
            compression: Compression::Zstd,
            mtbf: Seconds(-1.0),
        },
        emulate: Emulate::none(),
    }
}

fn blank_sync() -> Sync {
    Sync {
        mode: SyncMode::LocalSgd,
        local_steps: 0,
        local_steps_is_auto: false,
        final_local_steps: 0,
        worker_steps: Vec::new(),
        group_workers: 0,
        fragments: 0,
        inner_rounds: 0,
        synchronous_fraction: -1.0,
        average: AverageScope::State,
        outer: Outer::Nesterov,
        partition: SyncPartition::ByClass,
        dirichlet_alpha: -1.0,
        outer_lr: -1.0,
        outer_momentum: -1.0,
        stragglers: Stragglers {
            policy: StragglerPolicy::Shares,
            backups: 0,
            timeout: Seconds(-1.0),
            factor: -1.0,
            window: 0,
        },
        gradient_delay: u64::MAX,
        gossip: Gossip { graph: GraphName::Complete, degree: 0 },
        server: Server {
            count: 0,
            replicas: usize::MAX,
            consistency: Consistency::Bounded,
            staleness: u64::MAX,
            staleness_weight: StalenessWeight::Inverse,
            staleness_decay: -1.0,
            read_delay: u64::MAX,
            rows: EmbeddingRows {
                sparse: true,
                sharding: RowSharding::Range,
                cache: usize::MAX,
                cache_every: 0,
                replicated: usize::MAX,
                replicated_age: 0,
            },
            stale_gradients: StaleGradients::Discard,
            staleness_rule: StalenessRule::Linear,
            final_staleness: u64::MAX,
            curvature: -1.0,
            staleness_constant: -1.0,
            quorum: 0,
            quorum_timeout: Seconds(-1.0),
            late_gradients: LateGradients::Discard,
            switch_to_sync_after: -1.0,
            switch_on_loss_spike: -1.0,
            resets_momentum: true,
            aggregation: AggregationRule::Krum,
            assumed_byzantine: usize::MAX,
            gradient_clip: -1.0,
            byzantine: usize::MAX,
            attack: ByzantineAttack::Stale,
        },
        threads: 0,
    }
}

fn blank_compress() -> Compress {
    Compress {
        method: CompressMethod::Int8,
        ratio: -1.0,
        ratio_warmup_steps: u64::MAX,
        momentum: -1.0,
        bits: 0,
        rank: 0,
        overrides: Vec::new(),
        group_workers: usize::MAX,
        warmup_steps: u64::MAX,
        error_feedback: true,
        allow_biased: true,
    }
}

fn blank_federated() -> Federated {
    Federated {
        clients: 0,
        sampled: 0,
        method: FederatedMethod::Scaffold,
        mu: -1.0,
        min_steps_fraction: -1.0,
        server: FederatedServer::Yogi,
        server_lr: -1.0,
        server_momentum: -1.0,
        server_beta2: -1.0,
        server_tau: -1.0,
        aggregation: AggregationRule::Krum,
        assumed_byzantine: usize::MAX,
        clip: -1.0,
        noise_multiplier: -1.0,
        delta: -1.0,
        secure_aggregation: true,
        dropout: -1.0,
        late_fraction: -1.0,
        max_delay_rounds: u64::MAX,
        byzantine: -1.0,
        attack: ByzantineAttack::Stale,
    }
}

fn blank_parallel() -> Parallel {
    Parallel {
        pipeline: 0,
        virtual_stages: 0,
        schedule: PipelineSchedule::ZeroBubble,
        stage_layers: vec![0],
        partition: Partition::Measured,
        tensor: 0,
        sequence: true,
        data: 0,
        zero: u8::MAX,
        recompute: Recompute::Every(0),
        bucket_bytes: Bytes(u64::MAX),
        overlap: false,
        leaf_shares: vec![0],
    }
}

fn blank_data() -> Data {
    Data {
        source: Source::Path(String::new()),
        zipf: -1.0,
        tokenizer: Tokenizer::File(String::new()),
        validation: ValidationSource::Fraction(-1.0),
        documents: Documents::Padded,
        order: Order::Sequential,
        last_batch: EpochEnd::Pad,
        placement: Placement::Local,
        server: "unset".to_owned(),
        field: "unset".to_owned(),
        end_of_document: "unset".to_owned(),
    }
}

fn blank_precision() -> Precision {
    Precision {
        compute: Dtype::F32,
        wire: Dtype::F32,
        loss_scale: LossScaling::Dynamic,
        loss_scale_start: LossScale::ONE,
        loss_scale_interval: 0,
    }
}

fn blank_optim() -> Optim {
    Optim {
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
        drop_at: Vec::new(),
        drop_factor: -1.0,
        decay_fraction: -1.0,
        decay_shape: DecayShape::Linear,
        lr_scaling: LrScaling::None,
        lr_base_batch: 0,
        trust_coefficient: -1.0,
        groups: Vec::new(),
    }
}
