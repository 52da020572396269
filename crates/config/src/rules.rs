//! Rules between keys: what must divide, what must be even, what belongs together.
//!
//! Each rule looks at the filled recipe and gives at most one error, whose advice satisfies the
//! neighbouring rules too, so that following it does not lead into the next error. A rule about a
//! key whose value was already refused stays silent. Rules about the text are in `data`, about
//! workers in `layout`, `pipeline` and `tensor`, about rounds in `sync`, about gossip in `loose`,
//! about compression in `compress`, about groups, schedules and goals in `training`.

mod compress;
mod data;
mod emulate;
mod federated;
mod layout;
mod loose;
mod partition;
mod pipeline;
mod robust;
mod sync;
mod tensor;
mod training;

use crate::error::{ConfigError, Origin, alternatives};
use crate::keys::{self, MAX_BATCH, MAX_HEADS, MAX_MICROBATCH, MAX_WIDTH, usual_warmup};
use crate::kind::Kind;
use crate::problem::Problem;
use crate::recipe::{Family, Model, Recipe, Tokenizer};
use crate::resolve::{Obstacle, obstacle};
use crate::sources::Gathered;
use crate::value::quoted;

/// Every broken rule, in the order of the table of keys.
pub(crate) fn broken(recipe: &Recipe, gathered: &Gathered) -> Vec<ConfigError> {
    let facts = Facts { recipe, gathered };
    let mut errors = Vec::new();
    if recipe.model.family.is_problem() {
        errors.extend(optimum_can_be_computed(&facts));
    } else {
        let heads = heads_fit_width(&facts);
        // Advice on the heads respects the key heads, so a second error about them would be noise.
        if heads.as_ref().is_none_or(|error| error.key != "model.heads") {
            errors.extend(kv_heads_fit_heads(&facts));
        }
        errors.splice(0..0, heads);
        errors.extend(vocabulary_holds_the_tokenizer(&facts));
    }
    errors.extend(data::broken(&facts));
    errors.extend(batch_makes_whole_microbatches(&facts));
    errors.extend(warmup_ends(&facts));
    errors.extend(training::broken(&facts));
    errors.extend(tensor::broken(&facts));
    errors.extend(layout::broken(&facts));
    errors.extend(pipeline::broken(&facts));
    errors.extend(sync::broken(&facts));
    errors.extend(sync::uneven::broken(&facts));
    errors.extend(loose::broken(&facts));
    errors.extend(robust::broken(&facts));
    errors.extend(compress::broken(&facts));
    errors.extend(federated::broken(&facts));
    errors.extend(partition::broken(&facts));
    errors.extend(emulate::broken(&facts));
    errors.extend(settings_mean_something(&facts));
    errors
}

/// The longest head the attention kernel handles.
const MAX_HEAD_DIM: usize = 256;

/// The most unknowns whose optimum is computed at the start of a run.
const MAX_SOLVED_DIM: usize = 1024;

/// The most products that a step of its computation takes: about a second.
const MAX_SOLVED_PRODUCTS: usize = 1 << 32;

struct Facts<'a> {
    recipe: &'a Recipe,
    gathered: &'a Gathered,
}

impl Facts<'_> {
    /// Whether none of these keys was given a wrong value.
    fn sound(&self, names: &[&str]) -> bool {
        names.iter().all(|name| !self.gathered.bad.contains(name))
    }

    /// Whether anybody, a preset included, gave this key a value.
    fn is_set(&self, name: &str) -> bool {
        self.gathered.settings.contains_key(name)
    }

    /// An error about `names[0]` that is set to something, which `names[1]` does not go with;
    /// `better` is a value of `names[1]` that would, `idle` one of `names[0]`.
    fn needs(&self, names: [&str; 2], better: &str, idle: &str, why: &str) -> Option<ConfigError> {
        let [about, key] = names;
        let value = keys::find(key).filter(|_| self.sound(&names))?.get(self.recipe);
        let value = value.map_or(String::new(), |value| value.to_string());
        let rule = format!("{why}, and {key} = {value}");
        let is_word = keys::find(about).is_none_or(|key| !matches!(key.kind, Kind::Bool));
        let idle = if is_word { format!("\"{idle}\"") } else { idle.to_owned() };
        let fix = format!("try {key} = {better} or {about} = {idle}");
        Some(self.error(&names, rule, fix))
    }

    fn origin(&self, name: &str) -> Origin {
        self.gathered.settings.get(name).map_or(Origin::Default, |setting| setting.origin.clone())
    }

    /// An error about `names[0]`; it is reported where the strongest of `names` was written,
    /// because that is what brought the rule to break.
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

fn heads_fit_width(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["model.heads", "model.width", "model.family"];
    let model = &facts.recipe.model;
    if !facts.sound(&involved) || head_dim_fits(model, model.width, model.heads) {
        return None;
    }
    let Model { width, heads, .. } = *model;
    let divides = width.is_multiple_of(heads);
    let limit = if divides && width / heads > MAX_HEAD_DIM {
        format!("and {MAX_HEAD_DIM} is the most")
    } else {
        "and llama needs an even head size".to_owned()
    };
    let kv_heads_given = facts.is_set("model.kv_heads");
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
        return Some(facts.error(&["model.width", "model.heads"], rule, fix));
    }
    let rule = if divides {
        format!("makes heads of {} with model.width = {width}, {limit}", width / heads)
    } else {
        format!("does not divide model.width = {width}")
    };
    let fix = format!("try {}", alternatives(&around(&working, heads)));
    Some(facts.error(&involved, rule, fix))
}

/// Whether this many heads cut this width into heads that the family can use.
fn head_dim_fits(model: &Model, width: usize, heads: usize) -> bool {
    let head_dim = width / heads;
    width.is_multiple_of(heads)
        && head_dim <= MAX_HEAD_DIM
        && (model.family == Family::Gpt2 || head_dim.is_multiple_of(2))
}

/// The widths next to the given one that suit the given number of heads.
fn working_widths(model: &Model) -> Vec<usize> {
    let unit = if model.family == Family::Llama { 2 * model.heads } else { model.heads };
    let largest = (MAX_HEAD_DIM * model.heads).min(MAX_WIDTH as usize);
    let below = (model.width / unit * unit).clamp(unit, largest / unit * unit);
    [below, below + unit].into_iter().filter(|width| *width <= largest).collect()
}

fn kv_heads_fit_heads(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["model.kv_heads", "model.heads", "model.family"];
    let model = &facts.recipe.model;
    let Model { heads, kv_heads, .. } = *model;
    if !facts.sound(&involved) || kv_heads_suit(model, heads) {
        return None;
    }
    if model.family == Family::Gpt2 {
        let rule = "needs model.family = \"llama\", because gpt2 has no grouped-query attention";
        return Some(facts.error(&involved, rule.to_owned(), format!("try {heads}")));
    }
    let divisors: Vec<usize> = (1..=heads).filter(|n| heads.is_multiple_of(*n)).collect();
    let rule = format!("does not divide model.heads = {heads}");
    let fix = format!("try {}", alternatives(&around(&divisors, kv_heads)));
    Some(facts.error(&involved, rule, fix))
}

/// Whether the model's key heads could serve this many query heads.
fn kv_heads_suit(model: &Model, heads: usize) -> bool {
    match model.family {
        Family::Gpt2 => model.kv_heads == heads,
        _ => heads.is_multiple_of(model.kv_heads),
    }
}

fn vocabulary_holds_the_tokenizer(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["model.vocab", "data.tokenizer"];
    let tokenizer = &facts.recipe.data.tokenizer;
    let num_tokens = match tokenizer {
        Tokenizer::Byte => 256,
        // What a file holds is checked when it is read.
        Tokenizer::File(_) => 0,
    };
    if !facts.sound(&involved) || facts.recipe.model.vocab >= num_tokens {
        return None;
    }
    let rule = format!("is below the {num_tokens} tokens of data.tokenizer = \"{tokenizer}\"");
    Some(facts.error(&involved, rule, format!("try {num_tokens}")))
}

/// Ridge and logistic regression solve systems of as many equations as there are unknowns.
fn optimum_can_be_computed(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["problem.dim", "model.family"];
    let family = facts.recipe.model.family;
    let is_solved = matches!(family, Family::Ridge | Family::Logistic);
    let Problem { dim, samples, .. } = facts.recipe.model.problem;
    if !facts.sound(&involved) || !is_solved {
        return None;
    }
    if dim > MAX_SOLVED_DIM {
        let rule =
            format!("is too much for model.family = \"{family}\", whose optimum is computed");
        return Some(facts.error(&involved, rule, format!("try {MAX_SOLVED_DIM}")));
    }
    let most = MAX_SOLVED_PRODUCTS / (dim * dim);
    if samples <= most || !facts.sound(&["problem.samples"]) {
        return None;
    }
    let rule = format!("of problem.dim = {dim} is too much to compute the optimum from");
    Some(facts.error(&["problem.samples", "problem.dim"], rule, format!("try {most}")))
}

fn batch_makes_whole_microbatches(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["train.batch", "train.microbatch", "numerics.invariant_up_to"];
    if !facts.sound(&involved) {
        return None;
    }
    let (batch, microbatch_size) = (facts.recipe.train.batch, facts.recipe.train.microbatch_size);
    let leaves = facts.recipe.num_leaves();
    let working_batch = nearest_multiple(batch, microbatch_size * leaves);
    if !batch.is_multiple_of(microbatch_size) {
        let working: Vec<usize> = (1..=batch.min(MAX_MICROBATCH as usize))
            .filter(|size| batch.is_multiple_of(size * leaves))
            .collect();
        let [batch_origin, microbatch_origin] =
            ["train.batch", "train.microbatch"].map(|name| facts.origin(name).strength());
        if microbatch_origin > batch_origin && !working.is_empty() {
            let rule = format!("does not divide train.batch = {batch}");
            let fix = format!("try {}", alternatives(&around(&working, microbatch_size)));
            return Some(facts.error(&["train.microbatch", "train.batch"], rule, fix));
        }
        let rule = format!("is not a multiple of train.microbatch = {microbatch_size}");
        return Some(facts.error(&involved[..2], rule, format!("try {working_batch}")));
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
    let fix = if leaves_serve_workers(facts, working_leaves) {
        format!("try train.batch = {working_batch} or numerics.invariant_up_to = {working_leaves}")
    } else {
        format!("try train.batch = {working_batch}")
    };
    Some(facts.error(&involved, rule, fix))
}

/// Whether so many leaves are enough for the workers that somebody asked for.
fn leaves_serve_workers(facts: &Facts<'_>, leaves: usize) -> bool {
    let serve = |name: &str, workers: usize| !facts.is_set(name) || workers <= leaves;
    let shares_stay = !facts.is_set("parallel.shares");
    shares_stay
        && serve("run.workers", facts.recipe.run.workers / facts.recipe.parallel.workers_per_copy())
        && serve("parallel.data", facts.recipe.parallel.data)
}

fn warmup_ends(facts: &Facts<'_>) -> Option<ConfigError> {
    let involved = ["optim.warmup_steps", "train.steps"];
    let steps = facts.recipe.train.steps;
    if !facts.sound(&involved) || facts.recipe.optim.warmup_steps <= steps {
        return None;
    }
    let rule = format!("is more than train.steps = {steps}");
    Some(facts.error(&involved, rule, format!("try {}", usual_warmup(facts.recipe))))
}

/// A setting that the chosen optimizer, family or schedule does not have is an error if a person
/// wrote it; one that a preset brought along is simply not used.
fn settings_mean_something(facts: &Facts<'_>) -> Vec<ConfigError> {
    let mut errors = Vec::new();
    for key in keys::all() {
        let Some(setting) = facts.gathered.settings.get(key.name) else { continue };
        let obstacle = obstacle(key, facts.recipe).filter(|_| setting.origin.is_explicit());
        let Some(Obstacle { other, value: chosen, is }) = obstacle else { continue };
        if facts.sound(&[other]) {
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

/// Five of the ascending `candidates` around `value`: up to four below and one above, then
/// whatever is left to make five.
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
    fn advice_lies_around_the_given_value() {
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
