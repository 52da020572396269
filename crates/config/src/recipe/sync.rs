//! When workers agree, and the rounds that a run is cut into where that is not after every step.

use std::fmt;
use std::ops::Range;

use super::{Consistency, Gossip, Recipe, Server};

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
    /// Who averages with whom.
    pub gossip: Gossip,
    /// How servers hold the weights.
    pub server: Server,
}

choices! {
    /// When workers agree.
    SyncMode {
        /// In every step, on the sum of all gradients.
        AllReduce = "all-reduce",
        /// After a round of steps of their own, on the mean of their weights.
        LocalSgd = "local-sgd",
        /// Never: each averages its weights with its neighbours after every step.
        Gossip = "gossip",
        /// Whenever a worker reads the weights that servers hold.
        ParameterServer = "parameter-server",
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
        if self.sync.mode != SyncMode::LocalSgd || step < first {
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
    /// for itself, or the momentum of rounds. Only checkpoints hold that.
    pub fn keeps_more(&self) -> bool {
        self.has_own_state()
            || self.num_servers() > 0
            || self.sync.outer != Outer::None
            || self.compress.is_on()
    }

    /// Whether each worker has optimizer state of its own between rounds.
    pub fn has_own_state(&self) -> bool {
        match self.sync.mode {
            SyncMode::AllReduce | SyncMode::ParameterServer => false,
            SyncMode::LocalSgd => self.sync.average == Averaged::Weights,
            SyncMode::Gossip => true,
        }
    }

    /// Why bits depend on workers, where they do for how these agree.
    pub(super) fn bits_depend_on_sync(&self) -> Option<String> {
        let (mode, consistency) = (self.sync.mode, self.sync.server.consistency);
        let why = match mode {
            SyncMode::AllReduce => return None,
            SyncMode::ParameterServer if consistency == Consistency::Sync => {
                "servers add up the sums of workers, so a number of workers that is no power of \
                 two or other shares give other bits"
            }
            SyncMode::ParameterServer => {
                "gradients are taken as they come, so every run has other bits"
            }
            SyncMode::LocalSgd | SyncMode::Gossip => {
                "each worker takes steps of its own, so another number of workers or other shares \
                 give other bits"
            }
        };
        Some(format!("sync.mode = {mode}: {why}"))
    }

    /// Whether each worker steps by the gradients of its own lanes and has weights of its own.
    pub fn has_own_weights(&self) -> bool {
        self.sync.mode == SyncMode::Gossip
    }
}
