//! Does it fit? If not, what is too large, and what would fit?
//!
//! A run that cannot fit is refused before a worker starts: the machine would otherwise find out by
//! killing one of them in the middle of the night. What is offered instead is the nearest recipe
//! that fits, in the order in which changes cost least: compute activations again, divide more
//! among the workers, smaller microbatches. None of them changes the result, but the last.

use super::Memory;
use lockstep_config::units::Bytes;
use lockstep_config::{Blame, Recipe, Recompute};
use lockstep_parallel::asked::blueprint_on;

/// What a machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Memory that processes may use; 0 if nobody knows.
    pub memory: Bytes,
    /// What one process takes before it has a model.
    pub process: Bytes,
}

/// A run that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "run.workers = {workers} need {needed} of memory and this machine has {room}: {part} are \
     {part_bytes} of it; {}", .instead.as_deref().map_or_else(
        || "no setting of parallel.* makes it fit, so try a smaller model".to_owned(),
        |instead| format!("try {instead}"))
)]
pub struct TooLarge {
    /// Workers of this machine.
    pub workers: usize,
    /// What they would take.
    pub needed: Bytes,
    /// What there is.
    pub room: Bytes,
    /// What takes most.
    pub part: &'static str,
    /// How much that is, over all workers.
    pub part_bytes: Bytes,
    /// Settings with which it would fit.
    pub instead: Option<String>,
}

impl TooLarge {
    /// Who must act: whoever asked for the run.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }
}

/// The memory that all workers of a recipe take on one machine, if it fits.
pub fn check(recipe: &Recipe, room: Room) -> Result<Memory, TooLarge> {
    let memory = Memory::of(recipe, &blueprint_on(recipe, 0));
    let needed = needed(&memory, room);
    if room.memory == Bytes(0) || needed <= room.memory {
        return Ok(memory);
    }
    let (part, part_bytes) = largest_part(&memory);
    let instead = nearest(recipe, room);
    let workers = recipe.run.workers;
    Err(TooLarge { workers, needed, room: room.memory, part, part_bytes, instead })
}

/// Every worker has a process of its own at most; what they share is counted once.
fn needed(memory: &Memory, room: Room) -> Bytes {
    memory.total() + room.process * memory.ranks.len() as u64
}

fn largest_part(memory: &Memory) -> (&'static str, Bytes) {
    let names = memory.ranks[0].parts().into_iter().map(|(name, _)| name);
    let total = |name: &str| -> Bytes {
        let of_rank = |rank: &super::RankMemory| {
            rank.parts().into_iter().find(|(part, _)| *part == name).map(|(_, bytes)| bytes)
        };
        memory.ranks.iter().filter_map(of_rank).sum()
    };
    let parts = names.map(|name| (name, total(name)));
    parts.max_by_key(|(_, bytes)| *bytes).expect("there are parts")
}

/// The settings that differ least from the recipe's and fit.
fn nearest(recipe: &Recipe, room: Room) -> Option<String> {
    let mut changed = recipe.clone();
    let mut settings: Vec<String> = Vec::new();
    let fits = |recipe: &Recipe| {
        needed(&Memory::of(recipe, &blueprint_on(recipe, 0)), room) <= room.memory
    };
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
        // Divided gradients go round the workers, so shares of one's own are no more.
        if zero > 1 {
            changed.parallel.shares.clear();
        }
        if recipe.run.workers > 1 && fits(&changed) {
            settings.push(format!("parallel.zero = {zero}"));
            return Some(settings.join(" and "));
        }
    }
    if recipe.run.workers > 1 && recipe.parallel.zero < 3 {
        settings.push("parallel.zero = 3".to_owned());
    }
    // Fewer sequences a lane; the batch stays what it is.
    while changed.train.microbatch > 1 {
        changed.train.microbatch /= 2;
        let is_whole = changed.train.batch.is_multiple_of(changed.train.microbatch);
        if is_whole && fits(&changed) {
            settings.push(format!("train.microbatch = {}", changed.train.microbatch));
            return Some(settings.join(" and "));
        }
    }
    // Workers of one machine share its memory, so fewer of them need less.
    for copies in (1..recipe.parallel.data).rev() {
        let workers = copies * recipe.parallel.workers_per_copy();
        changed.run.workers = workers;
        changed.parallel.data = copies;
        changed.parallel.shares.clear();
        if fits(&changed) {
            settings.push(format!("run.workers = {workers}"));
            return Some(settings.join(" and "));
        }
    }
    None
}

const fn name(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Full | Recompute::Every(_) => "full",
    }
}
