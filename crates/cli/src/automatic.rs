//! Settings that memory decides: `auto` of `train.microbatch`, `parallel.recompute` and
//! `offload.activations`.
//!
//! The command that was typed chooses once and passes the result to its workers in the environment:
//! a worker that starts later sees less free memory. Ranks of another launcher choose by
//! themselves, by the size of the memory alone, which is the same for all of them.

use crate::failure::Failure;
use crate::prediction::{on_accelerator, room};
use crate::workers::{WorkerEnv, is_worker};
use lockstep_cluster::role::has_launcher;
use lockstep_config::units::Bytes;
use lockstep_config::{OffloadActivations, Recipe, Recompute};
use lockstep_planner::memory::{self, Choice, MemoryBudget, Process};
use lockstep_planner::scenario::DEFAULT_RESERVE;
use lockstep_platform::World;
use lockstep_trainer::device::{Accelerator, accelerator};
use std::fmt;

/// Environment variable with the micro-batch size, the recomputation and the place of activations
/// that the launcher chose.
const CHOSEN: &str = "LOCKSTEP_AUTOMATIC_SETTINGS";

/// Memory of a process before it has a model. A constant, so that all ranks choose alike.
const PROCESS: Process = Process { start: Bytes(64 << 20), text: Bytes(0) };

/// Automatic settings, and the memory by which they were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AutomaticSettings {
    pub(crate) choice: Choice,
    /// Owner of the memory: this machine, or an accelerator.
    pub(crate) place: String,
    /// All of its memory; 0 if unknown.
    pub(crate) memory: Bytes,
}

impl fmt::Display for AutomaticSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { choice: Choice { settings, needed, usable, faster }, place, memory } = self;
        write!(f, "chosen by memory: {settings}, which takes {needed}")?;
        match memory {
            Bytes(0) => write!(f, "; the memory of {place} is unknown")?,
            _ => write!(f, "; {place} has {memory}, {usable} besides its reserve")?,
        }
        match faster {
            Some((settings, needed)) => {
                write!(f, "; the next faster choice, {settings}, takes {needed}")
            }
            None => write!(f, "; no choice is faster"),
        }
    }
}

/// A command's need of automatic settings.
#[derive(Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// A run on this machine, or on the named device: settings that do not fit are refused.
    Run(Option<&'a Accelerator>),
    /// A recipe to look at, or for another machine: the smallest settings where none fit.
    Description,
}

/// Replaces automatic settings of a recipe by the fastest that fit.
pub(crate) fn choose(
    recipe: Recipe,
    purpose: Purpose<'_>,
    world: &World,
) -> Result<(Recipe, Option<AutomaticSettings>), Failure> {
    if !memory::is_automatic(&recipe) {
        // Opening an accelerator to ask for its memory takes a moment.
        return Ok((recipe, None));
    }
    if let Some(chosen) = from_launcher(&recipe, world) {
        return Ok((chosen, None));
    }
    let named = match purpose {
        Purpose::Run(named) => named.cloned(),
        Purpose::Description => None,
    };
    let is_alone = named.is_none() && !is_worker(world);
    let (found, is_known) = match named.map_or_else(|| accelerator(&recipe), |it| Ok(Some(it))) {
        Ok(found) => (found, true),
        // The device is on another machine.
        Err(_) => (None, false),
    };
    let all = if is_known {
        room(found.as_ref(), world, PROCESS)
    } else {
        MemoryBudget { memory: Bytes(0), process: PROCESS, is_accelerator: true }
    };
    let free = found.as_ref().map_or(0, |it| it.free_bytes);
    let usable = usable(all.memory, Bytes(if is_alone { free } else { 0 }));
    let room = MemoryBudget { memory: usable, ..all };
    let (recipe, choice) = match (memory::choose(recipe.clone(), room), purpose) {
        (Ok(chosen), _) => chosen,
        (Err(_), Purpose::Description) => (memory::smallest(&recipe, room), None),
        (Err(error), Purpose::Run(_)) => return Err(on_accelerator(error, found.as_ref()).into()),
    };
    let place = match (found, is_known) {
        (Some(accelerator), _) => accelerator.name,
        (None, true) => "this machine".to_owned(),
        (None, false) => "the device".to_owned(),
    };
    let settings = choice.map(|choice| AutomaticSettings { choice, place, memory: all.memory });
    Ok((recipe, settings))
}

/// Memory that automatic settings may take: all but the reserve, and no more than is free. On an
/// idle device the reserve is more than contexts take, so that every run there chooses alike.
fn usable(memory: Bytes, free: Bytes) -> Bytes {
    let most = (memory.0 as f64 * (1.0 - DEFAULT_RESERVE)) as u64;
    Bytes(if free.0 > 0 { most.min(free.0) } else { most })
}

/// Environment that passes automatic settings to workers.
pub(crate) fn to_env(recipe: &Recipe) -> WorkerEnv {
    let Recipe { train, parallel, offload, .. } = recipe;
    let chosen = (train.microbatch_size, parallel.recompute, offload.activations);
    vec![(CHOSEN, format!("{} {} {}", chosen.0, chosen.1, chosen.2))]
}

/// The recipe with the settings of the launcher that started this process.
fn from_launcher(recipe: &Recipe, world: &World) -> Option<Recipe> {
    let passed = world.host().env(CHOSEN).filter(|_| has_launcher(world))?;
    let (microbatch, rest) = passed.split_once(' ')?;
    let (recompute, place) = rest.split_once(' ')?;
    let mut chosen = recipe.clone();
    (chosen.train.microbatch_size, chosen.train.microbatch_is_auto) =
        (microbatch.parse().ok()?, false);
    (chosen.parallel.recompute, chosen.parallel.recompute_is_auto) =
        (Recompute::from_name(recompute)?, false);
    (chosen.offload.activations, chosen.offload.activations_is_auto) =
        (OffloadActivations::from_name(place)?, false);
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockstep_planner::memory::Settings;

    #[test]
    fn the_reserve_and_memory_of_other_processes_are_left() {
        let gib = |count: u64| Bytes(count << 30);
        assert_eq!(usable(gib(100), gib(0)), gib(94));
        assert_eq!(usable(gib(100), gib(99)), gib(94), "an idle device");
        assert_eq!(usable(gib(100), gib(60)), gib(60), "another process has 40 GiB");
        assert_eq!(usable(gib(0), gib(0)), gib(0), "unknown");
    }

    #[test]
    fn the_line_has_the_forecast_the_memory_and_the_next_choice() {
        let of = |size| Settings {
            microbatch: Some(size),
            recompute: Some(Recompute::None),
            offload: None,
        };
        let faster = Some((of(16), Bytes(150 << 30)));
        let choice =
            Choice { settings: of(8), needed: Bytes(80 << 30), usable: Bytes(94 << 30), faster };
        let place = "NVIDIA H200 (cuda:0)".to_owned();
        let mut chosen = AutomaticSettings { choice, place, memory: Bytes(100 << 30) };
        assert_eq!(
            chosen.to_string(),
            "chosen by memory: train.microbatch = 8 and parallel.recompute = none, which takes \
             80 GiB; NVIDIA H200 (cuda:0) has 100 GiB, 94 GiB besides its reserve; the next \
             faster choice, train.microbatch = 16 and parallel.recompute = none, takes 150 GiB"
        );
        chosen.choice.faster = None;
        chosen.memory = Bytes(0);
        let text = chosen.to_string();
        let unknown = "; the memory of NVIDIA H200 (cuda:0) is unknown; no choice is faster";
        assert!(text.ends_with(unknown), "{text}");
    }
}
