//! When workers agree, and the rounds that a run is cut into where that is not after every step.

use std::fmt;
use std::ops::Range;

use super::Recipe;

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
    /// Which samples meet where.
    pub partition: SyncPartition,
    /// How alike parts are, where they are drawn from Dirichlet's distribution.
    pub alpha: f64,
    /// Learning rate of the outer optimizer.
    pub outer_lr: f64,
    /// Momentum of the outer optimizer.
    pub outer_momentum: f64,
}

choices! {
    /// When workers agree.
    SyncMode {
        /// In every step, on the sum of all gradients.
        AllReduce = "all-reduce",
        /// After a round of steps of their own, on the mean of their weights.
        LocalSgd = "local-sgd",
        /// After a round of steps of clients that keep their data, on what a coordinator makes of
        /// their changes.
        Federated = "federated",
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
    /// Which samples leaves of the gradient sum, or clients, learn from.
    SyncPartition {
        /// All of them from all samples.
        Shared = "shared",
        /// Each from its own, dealt by chance.
        Iid = "iid",
        /// Each from its own, classes divided by Dirichlet's distribution.
        Dirichlet = "dirichlet",
        /// Each from its own, of few classes.
        ByClass = "by-class",
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
        let method = self.compress.method;
        self.compress.is_on().then(|| format!("compress.method = \"{method}\""))
    }

    /// The first step that is part of a round.
    pub fn first_round(&self) -> u64 {
        (self.sync.synchronous * self.train.steps as f64).round() as u64
    }

    /// Whether samples are divided into parts that differ.
    pub fn has_parts(&self) -> bool {
        self.sync.partition != SyncPartition::Shared
    }

    /// How many parts samples are divided into: one for each client, or for each leaf.
    pub fn num_parts(&self) -> usize {
        if self.is_federated() { self.federated.clients } else { self.num_leaves() }
    }

    /// Rounds that are over after so many steps.
    pub fn num_rounds(&self, num_steps: u64) -> u64 {
        let (mut start, mut rounds) = (self.first_round(), 0);
        while start < num_steps {
            start = self.round_at(start).end;
            rounds += 1;
        }
        rounds
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
        let has_more = self.sync.outer != Outer::None || self.compress.is_on();
        self.has_own_state() || has_more || self.is_federated()
    }

    /// Whether each worker has optimizer state of its own between rounds.
    pub fn has_own_state(&self) -> bool {
        self.sync.mode == SyncMode::LocalSgd && self.sync.average == Averaged::Weights
    }
}
