//! Memory check of a run before it starts, with a recipe that would fit.
//!
//! A run that cannot fit is rejected before a worker starts; otherwise the system would kill a
//! worker in the middle of the run. The suggestion is the closest recipe that fits, by ascending
//! cost of the change: recompute activations, shard more among the workers, offload the optimizer
//! state to disk, smaller micro-batches, fewer workers, all of which leave the model as it is; then
//! a smaller model of a similar shape.

use super::engine::{Memory, RankMemory};
use super::process::Process;
use lockstep_config::units::Bytes;
use lockstep_config::{Blame, Model, OffloadState, Recipe, Recompute};
use lockstep_parallel::from_recipe::blueprint_of_rank;

/// Memory of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Memory available to processes; 0 if unknown.
    pub memory: Bytes,
    /// Process of the run before it has a model.
    pub process: Process,
    /// Whether the memory is that of an accelerator, which has no part of the process.
    pub is_accelerator: bool,
}

/// A run that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "run.workers = {workers} takes {needed} of memory{} and {place} has {room}{}: the largest \
     part, {part}, takes {part_bytes}; {}",
    .smallest.as_ref().map_or_else(String::new, |settings| format!(" even with {settings},")),
    if .smallest.is_some() { " besides its reserve" } else { "" },
    .instead.as_deref().map_or_else(
        || "not even a small model fits; try a machine with more memory".to_owned(),
        |instead| format!("try {instead}"))
)]
pub struct OutOfMemory {
    /// Workers on this machine.
    pub workers: usize,
    /// Memory that they need.
    pub needed: Bytes,
    /// Owner of the memory: this machine, or an accelerator.
    pub place: String,
    /// Memory that is available.
    pub room: Bytes,
    /// Largest part.
    pub part: &'static str,
    /// Bytes of the largest part, over all workers.
    pub part_bytes: Bytes,
    /// Automatic settings that need least, where some are automatic; they leave a reserve.
    pub smallest: Option<String>,
    /// Settings with which the run would fit.
    pub instead: Option<String>,
}

impl OutOfMemory {
    /// Blame: the user chose the run.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }

    /// Names the accelerator that has the memory.
    #[must_use]
    pub fn on(self, accelerator: &str) -> Self {
        Self { place: accelerator.to_owned(), ..self }
    }
}

/// Memory of all workers of a recipe on one machine, if it fits.
pub fn check(recipe: &Recipe, room: MemoryBudget) -> Result<Memory, OutOfMemory> {
    let memory = Memory::of(recipe, &blueprint_of_rank(recipe, 0));
    let needed = needed(&memory, room);
    if room.memory == Bytes(0) || needed <= room.memory {
        return Ok(memory);
    }
    let (part, part_bytes) = largest_part(&memory);
    let instead = nearest(recipe, room).or_else(|| smaller(recipe, room));
    let workers = recipe.run.workers;
    let (place, room) = ("this machine".to_owned(), room.memory);
    Err(OutOfMemory { workers, needed, place, room, part, part_bytes, smallest: None, instead })
}

/// At most one process per worker, all on one accelerator if any; shared memory counts once.
pub(super) fn needed(memory: &Memory, room: MemoryBudget) -> Bytes {
    if room.is_accelerator {
        return memory.on_accelerators().into_iter().sum();
    }
    memory.total() + room.process.besides(1, 0) * memory.ranks.len() as u64
}

fn largest_part(memory: &Memory) -> (&'static str, Bytes) {
    let names = memory.ranks[0].parts().into_iter().map(|(name, _)| name);
    let total = |name: &str| -> Bytes {
        let of_rank = |rank: &RankMemory| {
            rank.parts().into_iter().find(|(part, _)| *part == name).map(|(_, bytes)| bytes)
        };
        memory.ranks.iter().filter_map(of_rank).sum()
    };
    let parts = names.map(|name| (name, total(name)));
    parts.max_by_key(|(_, bytes)| *bytes).expect("there are parts")
}

/// Settings closest to the recipe's that fit.
fn nearest(recipe: &Recipe, room: MemoryBudget) -> Option<String> {
    let mut changed = recipe.clone();
    let mut settings: Vec<String> = Vec::new();
    let needs = |recipe: &Recipe| needed(&Memory::of(recipe, &blueprint_of_rank(recipe, 0)), room);
    let fits = |recipe: &Recipe| needs(recipe) <= room.memory;
    for recompute in [Recompute::Selective, Recompute::Full] {
        if changed.parallel.recompute == Recompute::None || recompute == Recompute::Full {
            changed.parallel.recompute = recompute;
            if fits(&changed) {
                return Some(format!("parallel.recompute = {}", name(recompute)));
            }
        }
    }
    if recipe.parallel.recompute != Recompute::Full {
        settings.push("parallel.recompute = full".to_owned());
    }
    for zero in recipe.parallel.zero + 1..=3 {
        changed.parallel.zero = zero;
        // Sharded gradients pass all workers, so unequal leaf shares do not apply.
        if zero > 1 {
            changed.parallel.leaf_shares.clear();
        }
        if recipe.run.workers > 1 && fits(&changed) {
            settings.push(format!("parallel.zero = {zero}"));
            return Some(settings.join(" and "));
        }
    }
    if recipe.run.workers > 1 && recipe.parallel.zero < 3 {
        settings.push("parallel.zero = 3".to_owned());
    }
    let before = needs(&changed);
    changed.offload.state = OffloadState::File;
    // Stateless optimizers have nothing to offload.
    if needs(&changed) < before {
        settings.push("offload.state = file".to_owned());
        if fits(&changed) {
            return Some(settings.join(" and "));
        }
    }
    // Smaller micro-batches with the same global batch.
    while changed.train.microbatch_size > 1 {
        changed.train.microbatch_size /= 2;
        let is_whole = changed.train.batch.is_multiple_of(changed.train.microbatch_size);
        if is_whole && fits(&changed) {
            settings.push(format!("train.microbatch = {}", changed.train.microbatch_size));
            return Some(settings.join(" and "));
        }
    }
    // Workers of one machine share its memory, so fewer of them need less.
    for copies in (1..recipe.parallel.data).rev() {
        let workers = copies * recipe.parallel.workers_per_replica();
        changed.run.workers = workers;
        changed.parallel.data = copies;
        changed.parallel.leaf_shares.clear();
        if fits(&changed) {
            settings.push(format!("run.workers = {workers}"));
            return Some(settings.join(" and "));
        }
    }
    None
}

/// Narrowest model that is suggested.
const MIN_WIDTH: usize = 32;

/// Largest model of a similar shape that fits in the recipe's layout. Width, heads and layers
/// shrink together, and the ratio of width to layers stays within a factor of two: a model of one
/// wide layer would fit too, and learn little.
fn smaller(recipe: &Recipe, room: MemoryBudget) -> Option<String> {
    if recipe.model.family.is_problem() || !recipe.parallel.stage_layers.is_empty() {
        return None;
    }
    let layers = recipe.model.layers;
    for halvings in 0..usize::BITS {
        let mut changed = narrower(recipe, halvings)?;
        let mut fits = |layers: usize| {
            changed.model.layers = layers;
            needed(&Memory::of(&changed, &blueprint_of_rank(&changed, 0)), room) <= room.memory
        };
        // Every pipeline stage has at least one layer.
        let fewest = (layers >> (halvings + 1)).max(recipe.parallel.num_stages());
        let most = layers >> halvings.saturating_sub(1);
        if fewest > most {
            return None;
        }
        if !fits(fewest) {
            continue;
        }
        let (mut fitting, mut too_many) = (fewest, most + 1);
        while too_many - fitting > 1 {
            let middle = usize::midpoint(fitting, too_many);
            if fits(middle) { fitting = middle } else { too_many = middle }
        }
        changed.model.layers = fitting;
        return Some(shape_text(&recipe.model, &changed.model));
    }
    None
}

/// The recipe with a model whose width and feed-forward size are halved so often, and whose heads
/// are as wide as before where their number allows it; none where no such model is valid.
fn narrower(recipe: &Recipe, halvings: u32) -> Option<Recipe> {
    let mut changed = recipe.clone();
    let half = |size: usize| (size >> halvings << halvings == size).then_some(size >> halvings);
    let model = &mut changed.model;
    model.width = half(model.width).filter(|width| *width >= MIN_WIDTH)?;
    model.ffn >>= halvings;
    let heads = half(model.heads).zip(half(model.kv_heads));
    (model.heads, model.kv_heads) = heads.unwrap_or((model.heads, model.kv_heads));
    // Rotary positions need heads of an even number of elements.
    let is_whole = model.width.is_multiple_of(2 * model.heads);
    let shards = recipe.num_tensor_shards();
    let sharded = [model.heads, model.kv_heads, model.ffn];
    let divides = sharded.iter().all(|size| *size > 0 && size.is_multiple_of(shards));
    (is_whole && divides).then_some(changed)
}

/// The settings in which a model of another shape differs.
fn shape_text(from: &Model, to: &Model) -> String {
    let of = |model: &Model| {
        // A key that is left out follows the number of heads.
        let kv_heads = if model.kv_heads == model.heads { 0 } else { model.kv_heads };
        let Model { layers, width, heads, ffn, .. } = *model;
        let names = ["layers", "width", "heads", "kv_heads", "ffn"];
        names.into_iter().zip([layers, width, heads, kv_heads, ffn]).collect::<Vec<_>>()
    };
    let pairs = of(from).into_iter().zip(of(to)).filter(|(from, to)| from != to);
    let texts: Vec<String> =
        pairs.map(|(_, (name, value))| format!("model.{name} = {value}")).collect();
    match texts.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => unreachable!("a smaller model differs"),
    }
}

const fn name(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full | Recompute::Every(_) => "full",
    }
}
