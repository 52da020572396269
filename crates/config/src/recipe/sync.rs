//! When workers agree, and the rounds that a run is cut into where that is not after every step.

use std::fmt;
use std::ops::Range;

use super::Recipe;

mod uneven;

pub use uneven::{Stragglers, Uneven};

/// When workers agree, and on what.
#[derive(Debug, Clone, PartialEq)]
pub struct Sync {
    /// In every step or in rounds.
    pub mode: SyncMode,
    /// Steps of a round at the beginning; at least 1.
    pub local_steps: u64,
    /// Steps of a round at the end; at least 1.
    pub final_local_steps: u64,
    /// The share of the run before the first round.
    pub synchronous: f64,
    /// What is averaged.
    pub average: Averaged,
    /// What becomes of the mean change of a round.
    pub outer: Outer,
    /// Learning rate of the outer optimizer.
    pub outer_lr: f64,
    /// Momentum of the outer optimizer.
    pub outer_momentum: f64,
    /// What becomes of workers that are late, and of gradients.
    pub uneven: Uneven,
}

choices! {
    /// When workers agree.
    SyncMode {
        /// In every step, on the sum of all gradients.
        AllReduce = "all-reduce",
        /// After a round of steps of their own, on the mean of their weights.
        LocalSgd = "local-sgd",
    }
}

choices! {
    /// What workers average at the end of a round.
    Averaged {
        /// Weights; each worker keeps its own optimizer state.
        Weights = "weights",
        /// Weights and the optimizer's state.
        State = "state",
    }
}

choices! {
    /// What becomes of the mean change of a round.
    Outer {
        /// It is the change.
        None = "none",
        /// Its negative is the gradient of an optimizer with Nesterov's momentum.
        Nesterov = "nesterov",
    }
}

impl Recipe {
    /// The steps of the round that a step belongs to; a step by itself where workers agree after
    /// it anyway. A function of the recipe alone, so that a run that goes on from a checkpoint has
    /// the same rounds.
    pub fn round_at(&self, step: u64) -> Range<u64> {
        let (steps, first) = (self.train.steps, self.first_round());
        if self.sync.mode == SyncMode::AllReduce || step < first {
            return step..step + 1;
        }
        let (from, to) = (self.sync.local_steps, self.sync.final_local_steps);
        if from == to {
            let start = first + (step - first) / from * from;
            return start..(start + from).min(steps.max(step + 1));
        }
        let mut start = first;
        loop {
            let done = (start - first) as f64 / (steps - first).max(1) as f64;
            let len = (from as f64 + (to as f64 - from as f64) * done.min(1.0)).round() as u64;
            let end = (start + len.max(1)).min(steps.max(step + 1));
            if step < end {
                return start..end;
            }
            start = end;
        }
    }

    /// What makes workers send and keep something else than forecasts count: the sum of all
    /// gradients, in every step.
    pub fn uncounted(&self) -> Option<String> {
        if self.sync.mode != SyncMode::AllReduce {
            return Some(format!("sync.mode = \"{}\"", self.sync.mode));
        }
        let stragglers = self.sync.uneven.stragglers;
        if stragglers != Stragglers::Wait {
            return Some(format!("sync.stragglers = \"{stragglers}\""));
        }
        let method = self.compress.method;
        self.compress.is_on().then(|| format!("compress.method = \"{method}\""))
    }

    /// The first step that is part of a round.
    pub fn first_round(&self) -> u64 {
        (self.sync.synchronous * self.train.steps as f64).round() as u64
    }

    /// Whether all workers hold the same weights after so many steps.
    pub fn is_round_over(&self, num_steps: u64) -> bool {
        num_steps == 0 || self.round_at(num_steps - 1).end == num_steps
    }

    /// Whether something that is to happen every so many steps is due at the end of the round that
    /// ends after `num_steps`: it waits until workers agree.
    pub fn is_due_every(&self, every: u64, num_steps: u64) -> bool {
        if every == 0 || num_steps == 0 {
            return false;
        }
        let round = self.round_at(num_steps - 1);
        round.end == num_steps && round.start / every < num_steps / every
    }

    /// Whether going on takes more than weights and one optimizer's state: what each worker keeps
    /// for itself, the momentum of rounds, or gradients on their way. Only checkpoints hold that.
    pub fn keeps_more(&self) -> bool {
        let is_late = self.sync.uneven.delay > 0;
        self.has_own_state() || self.sync.outer != Outer::None || self.compress.is_on() || is_late
    }

    /// Whether each worker has optimizer state of its own between rounds.
    pub fn has_own_state(&self) -> bool {
        self.sync.mode == SyncMode::LocalSgd && self.sync.average == Averaged::Weights
    }
}
