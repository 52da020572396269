//! Rules between keys: divisibility, compatibility and required combinations.
//!
//! Each rule checks the filled recipe and returns at most one error. Its fix satisfies the related
//! rules too, so that following it does not cause the next error. A rule about a key whose value
//! was already refused is skipped. Rules of the model are here, all others in a module per topic.

mod compress;
mod data;
mod emulate;
mod federated;
mod gossip;
mod hogwild;
mod layout;
mod parameter_server;
mod partition;
mod pipeline;
mod robust_aggregation;
mod stragglers;
mod sync;
mod tensor;
mod training;

use crate::conditions::{UnmetCondition, unmet_condition};
use crate::error::{ConfigError, Origin, alternatives};
use crate::keys::{self, MAX_BATCH, MAX_HEADS, MAX_MICROBATCH, MAX_WIDTH, default_warmup};
use crate::recipe::{Family, Model, Problem, Recipe, Tokenizer};
use crate::sources::MergedSources;
use crate::value::quoted;
use crate::value_type::ValueType;

/// Every broken rule, in the order of the table of keys.
pub(crate) fn broken(recipe: &Recipe, merged: &MergedSources) -> Vec<ConfigError> {
    let context = RuleContext { recipe, merged };
    let mut errors = Vec::new();
    if recipe.model.family.is_problem() {
        errors.extend(optimum_can_be_computed(&context));
    } else {
        let heads = heads_fit_width(&context);
        // The fix for the heads respects the key heads, so a second error would be noise.
        if heads.as_ref().is_none_or(|error| error.key != "model.heads") {
            errors.extend(kv_heads_fit_heads(&context));
        }
        errors.splice(0..0, heads);
        errors.extend(vocabulary_holds_the_tokenizer(&context));
        errors.extend(positions_hold_the_context(&context));
    }
    errors.extend(data::broken(&context));
    errors.extend(batch_makes_whole_microbatches(&context));
    errors.extend(warmup_ends(&context));
    errors.extend(training::broken(&context));
    errors.extend(tensor::broken(&context));
    errors.extend(layout::broken(&context));
    errors.extend(pipeline::broken(&context));
    errors.extend(sync::broken(&context));
    errors.extend(stragglers::broken(&context));
    errors.extend(hogwild::broken(&context));
    errors.extend(gossip::broken(&context));
    errors.extend(parameter_server::broken(&context));
    errors.extend(robust_aggregation::broken(&context));
    errors.extend(compress::broken(&context));
    errors.extend(federated::broken(&context));
    errors.extend(partition::broken(&context));
    errors.extend(emulate::broken(&context));
    errors.extend(settings_have_an_effect(&context));
    errors
}

/// Largest head size that the attention kernel supports.
const MAX_HEAD_DIM: usize = 256;

/// Largest number of unknowns whose optimum is computed at the start of a run.
const MAX_SOLVED_DIM: usize = 1024;

/// Largest number of products per step of that computation: about a second.
const MAX_SOLVED_PRODUCTS: usize = 1 << 32;

struct RuleContext<'a> {
    recipe: &'a Recipe,
    merged: &'a MergedSources,
}

impl RuleContext<'_> {
    /// Whether no source gave any of these keys an invalid value.
    fn all_valid(&self, names: &[&str]) -> bool {
        names.iter().all(|name| !self.merged.invalid.contains(name))
    }

    /// Whether any source, presets included, sets this key.
    fn is_set(&self, name: &str) -> bool {
        self.merged.settings.contains_key(name)
    }

    /// An error about `names[0]`, whose value is incompatible with that of `names[1]`; `better` is
    /// a compatible value of `names[1]`, `inactive` one of `names[0]`.
    fn incompatible(
        &self,
        names: [&str; 2],
        better: &str,
        inactive: &str,
        why: &str,
    ) -> Option<ConfigError> {
        let [about, key] = names;
        let value = keys::find(key).filter(|_| self.all_valid(&names))?.get(self.recipe);
        let value = value.map_or(String::new(), |value| value.to_string());
        let rule = format!("{why}, and {key} = {value}");
        let is_text =
            keys::find(about).is_none_or(|key| !matches!(key.value_type, ValueType::Bool));
        let inactive = if is_text { format!("\"{inactive}\"") } else { inactive.to_owned() };
        let fix = format!("try {key} = {better} or {about} = {inactive}");
        Some(self.error(&names, rule, fix))
    }

    fn origin(&self, name: &str) -> Origin {
        self.merged.settings.get(name).map_or(Origin::Default, |setting| setting.origin.clone())
    }

    /// An error about `names[0]`, reported at the origin of the strongest of `names`, which is the
    /// setting that broke the rule.
    fn error(&self, names: &[&str], rule: String, fix: String) -> ConfigError {
        let value = keys::find(names[0]).and_then(|key| key.get(self.recipe));
        let mut origin = self.origin(names[0]);
        for other in names.iter().map(|name| self.origin(name)) {
            if other.strength() > origin.strength() {
                origin = other;
            }
        }
        ConfigError {
            key: names[0].to_owned(),
            value: value.map_or(String::new(), |value| value.to_string()),
            rule,
            fix,
            origin,
        }
    }
}

fn heads_fit_width(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["model.heads", "model.width", "model.family"];
    let model = &context.recipe.model;
    if !context.all_valid(&involved) || head_dim_fits(model, model.width, model.heads) {
        return None;
    }
    let Model { width, heads, .. } = *model;
    let divides = width.is_multiple_of(heads);
    let limit = if divides && width / heads > MAX_HEAD_DIM {
        format!("and the maximum is {MAX_HEAD_DIM}")
    } else {
        "and llama needs an even head size".to_owned()
    };
    let kv_heads_given = context.is_set("model.kv_heads");
    let working: Vec<usize> = (1..=width.min(MAX_HEADS as usize))
        .filter(|heads| head_dim_fits(model, width, *heads))
        .filter(|heads| !kv_heads_given || kv_heads_suit(model, *heads))
        .collect();
    if working.is_empty() {
        let rule = if divides {
            format!("makes heads of {} with model.heads = {heads}, {limit}", width / heads)
        } else {
            format!("is not a multiple of model.heads = {heads}")
        };
        let fix = format!("try {}", alternatives(&working_widths(model)));
        return Some(context.error(&["model.width", "model.heads"], rule, fix));
    }
    let rule = if divides {
        format!("makes heads of {} with model.width = {width}, {limit}", width / heads)
    } else {
        format!("does not divide model.width = {width}")
    };
    let fix = format!("try {}", alternatives(&around(&working, heads)));
    Some(context.error(&involved, rule, fix))
}

/// Whether this number of heads divides the width into head sizes that the family supports.
fn head_dim_fits(model: &Model, width: usize, heads: usize) -> bool {
    let head_dim = width / heads;
    width.is_multiple_of(heads)
        && head_dim <= MAX_HEAD_DIM
        && (model.family == Family::Gpt2 || head_dim.is_multiple_of(2))
}

/// The widths next to the current one that fit the number of heads.
fn working_widths(model: &Model) -> Vec<usize> {
    let unit = if model.family == Family::Llama { 2 * model.heads } else { model.heads };
    let largest = (MAX_HEAD_DIM * model.heads).min(MAX_WIDTH as usize);
    let below = (model.width / unit * unit).clamp(unit, largest / unit * unit);
    [below, below + unit].into_iter().filter(|width| *width <= largest).collect()
}

fn kv_heads_fit_heads(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["model.kv_heads", "model.heads", "model.family"];
    let model = &context.recipe.model;
    let Model { heads, kv_heads, .. } = *model;
    if !context.all_valid(&involved) || kv_heads_suit(model, heads) {
        return None;
    }
    if model.family == Family::Gpt2 {
        let rule = "needs model.family = \"llama\", because gpt2 has no grouped-query attention";
        return Some(context.error(&involved, rule.to_owned(), format!("try {heads}")));
    }
    let divisors: Vec<usize> = (1..=heads).filter(|n| heads.is_multiple_of(*n)).collect();
    let rule = format!("does not divide model.heads = {heads}");
    let fix = format!("try {}", alternatives(&around(&divisors, kv_heads)));
    Some(context.error(&involved, rule, fix))
}

/// Whether the model's key heads fit this number of query heads.
fn kv_heads_suit(model: &Model, heads: usize) -> bool {
    match model.family {
        Family::Gpt2 => model.kv_heads == heads,
        _ => heads.is_multiple_of(model.kv_heads),
    }
}

fn vocabulary_holds_the_tokenizer(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["model.vocab", "data.tokenizer"];
    let tokenizer = &context.recipe.data.tokenizer;
    let num_tokens = match tokenizer {
        Tokenizer::Byte => 256,
        // The size of a file's vocabulary is checked when the file is read.
        Tokenizer::File(_) => 0,
    };
    if !context.all_valid(&involved) || context.recipe.model.vocab >= num_tokens {
        return None;
    }
    let rule = format!("is below the {num_tokens} tokens of data.tokenizer = \"{tokenizer}\"");
    Some(context.error(&involved, rule, format!("try {num_tokens}")))
}

fn positions_hold_the_context(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["model.max_positions", "model.context"];
    let sequence_len = context.recipe.model.context;
    let fits = context.recipe.max_positions.is_none_or(|max| max >= sequence_len);
    if !context.all_valid(&involved) || fits {
        return None;
    }
    let rule = format!("is below model.context = {sequence_len}");
    Some(context.error(&involved, rule, format!("try {sequence_len}")))
}

/// Ridge and logistic regression compute their optimum by solving a dense linear system.
fn optimum_can_be_computed(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["problem.dim", "model.family"];
    let family = context.recipe.model.family;
    let is_solved = matches!(family, Family::Ridge | Family::Logistic);
    let Problem { dim, samples, .. } = context.recipe.model.problem;
    if !context.all_valid(&involved) || !is_solved {
        return None;
    }
    if dim > MAX_SOLVED_DIM {
        let rule =
            format!("is too large for model.family = \"{family}\", whose optimum is computed");
        return Some(context.error(&involved, rule, format!("try {MAX_SOLVED_DIM}")));
    }
    let most = MAX_SOLVED_PRODUCTS / (dim * dim);
    if samples <= most || !context.all_valid(&["problem.samples"]) {
        return None;
    }
    let rule = format!("with problem.dim = {dim} is too large to compute the optimum");
    Some(context.error(&["problem.samples", "problem.dim"], rule, format!("try {most}")))
}

fn batch_makes_whole_microbatches(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["train.batch", "train.microbatch", "numerics.invariant_up_to"];
    if !context.all_valid(&involved) {
        return None;
    }
    let (batch, microbatch_size) =
        (context.recipe.train.batch, context.recipe.train.microbatch_size);
    let leaves = context.recipe.num_leaves();
    let working_batch = nearest_multiple(batch, microbatch_size * leaves);
    if !batch.is_multiple_of(microbatch_size) {
        let working: Vec<usize> = (1..=batch.min(MAX_MICROBATCH as usize))
            .filter(|size| batch.is_multiple_of(size * leaves))
            .collect();
        let [batch_origin, microbatch_origin] =
            ["train.batch", "train.microbatch"].map(|name| context.origin(name).strength());
        if microbatch_origin > batch_origin && !working.is_empty() {
            let rule = format!("does not divide train.batch = {batch}");
            let fix = format!("try {}", alternatives(&around(&working, microbatch_size)));
            return Some(context.error(&["train.microbatch", "train.batch"], rule, fix));
        }
        let rule = format!("is not a multiple of train.microbatch = {microbatch_size}");
        return Some(context.error(&involved[..2], rule, format!("try {working_batch}")));
    }
    let microbatches = batch / microbatch_size;
    if microbatches.is_multiple_of(leaves) {
        return None;
    }
    let rule = format!(
        "makes {microbatches} {} of train.microbatch = {microbatch_size}, which \
         numerics.invariant_up_to = {leaves} does not divide",
        if microbatches == 1 { "micro-batch" } else { "micro-batches" },
    );
    let working_leaves = 1usize << microbatches.trailing_zeros();
    let fix = if leaves_serve_workers(context, working_leaves) {
        format!("try train.batch = {working_batch} or numerics.invariant_up_to = {working_leaves}")
    } else {
        format!("try train.batch = {working_batch}")
    };
    Some(context.error(&involved, rule, fix))
}

/// Whether this number of leaves is enough for the workers that a source sets.
fn leaves_serve_workers(context: &RuleContext<'_>, leaves: usize) -> bool {
    let serve = |name: &str, workers: usize| !context.is_set(name) || workers <= leaves;
    let shares_stay = !context.is_set("parallel.leaf_shares");
    shares_stay
        && serve(
            "run.workers",
            context.recipe.run.workers / context.recipe.parallel.workers_per_replica(),
        )
        && serve("parallel.data", context.recipe.parallel.data)
}

fn warmup_ends(context: &RuleContext<'_>) -> Option<ConfigError> {
    let involved = ["optim.warmup_steps", "train.steps"];
    let steps = context.recipe.train.steps;
    if !context.all_valid(&involved) || context.recipe.optim.warmup_steps <= steps {
        return None;
    }
    let rule = format!("is more than train.steps = {steps}");
    Some(context.error(&involved, rule, format!("try {}", default_warmup(context.recipe))))
}

/// A setting without effect is an error if the user wrote it; one from a preset is ignored.
fn settings_have_an_effect(context: &RuleContext<'_>) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for key in keys::all() {
        let Some(setting) = context.merged.settings.get(key.name) else { continue };
        let unmet_condition =
            unmet_condition(key, context.recipe).filter(|_| setting.origin.is_explicit());
        let Some(UnmetCondition { other, value: chosen, is }) = unmet_condition else { continue };
        if context.all_valid(&[other]) {
            let others: Vec<String> = is.iter().map(|name| quoted(name)).collect();
            errors.push(ConfigError {
                key: key.name.to_owned(),
                value: setting.value.to_string(),
                rule: format!("is not a setting of {other} = {chosen}"),
                fix: format!("remove it or set {other} = {}", alternatives(&others)),
                origin: setting.origin.clone(),
            });
        }
    }
    errors
}

/// The multiple of `unit` nearest to `value`, at least one unit and within the largest batch.
fn nearest_multiple(value: usize, unit: usize) -> usize {
    let below = value / unit * unit;
    let above = below + unit;
    let take_above = below == 0 || (value - below > above - value && above <= MAX_BATCH as usize);
    if take_above { above } else { below }
}

/// Five of the ascending `candidates` around `value`: up to four below and one above, filled up to
/// five from either side.
fn around(candidates: &[usize], value: usize) -> Vec<usize> {
    const MOST: usize = 5;
    let below = candidates.iter().filter(|candidate| **candidate < value).count();
    let above = candidates.len() - below;
    let from_below = below.min(MOST - above.min(1)).max(MOST.saturating_sub(above).min(below));
    let first = below - from_below;
    candidates[first..candidates.len().min(first + MOST)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixes_are_around_the_current_value() {
        let divisors = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96];
        assert_eq!(around(&divisors, 5), [1, 2, 3, 4, 6]);
        assert_eq!(around(&divisors, 20), [6, 8, 12, 16, 24]);
        assert_eq!(around(&divisors, 100), [16, 24, 32, 48, 96]);
        assert_eq!(around(&divisors, 0), [1, 2, 3, 4, 6]);
        assert_eq!(around(&[7], 3), [7]);
        assert_eq!(around(&[7], 9), [7]);
        assert!(around(&[], 9).is_empty());
    }

    #[test]
    fn the_nearest_multiple_is_never_zero_and_never_too_large() {
        assert_eq!(nearest_multiple(1, 16), 16);
        assert_eq!(nearest_multiple(23, 16), 16);
        assert_eq!(nearest_multiple(24, 16), 16);
        assert_eq!(nearest_multiple(25, 16), 32);
        let largest = MAX_BATCH as usize;
        assert!(nearest_multiple(largest, 3 * 64) <= largest);
    }
}
