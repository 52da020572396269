//! Rounds of local SGD and federated learning.

use std::ops::Range;

use super::SyncPartition;
use super::{AverageScope, Consistency, Outer, Recipe, StragglerPolicy, Sync, SyncMode};

impl Recipe {
    /// The steps of the round of a step; the step alone in modes without rounds. A function of the
    /// recipe alone, so that a resumed run has the same rounds.
    pub fn round_at(&self, step: u64) -> Range<u64> {
        let (steps, first) = (self.train.steps, self.first_round());
        if !matches!(self.sync.mode, SyncMode::LocalSgd | SyncMode::Federated) || step < first {
            return step..step + 1;
        }
        let (from, to) = (self.sync.local_steps, self.sync.final_local_steps);
        if from == to {
            let len = from * self.sync.inner_rounds;
            let start = first + (step - first) / len * len;
            return start..(start + len).min(steps.max(step + 1));
        }
        let cap = steps.max(step + 1);
        let mut start = first;
        loop {
            // Consecutive rounds of equal length are skipped at once, so the cost is the number of
            // lengths, not of rounds.
            let len = self.round_len(start);
            let rest = (step - start) / len;
            let same = partition_point(rest, |n| self.round_len(start + n * len) == len);
            start += same * len;
            let end = (start + self.round_len(start)).min(cap);
            if step < end {
                return start..end;
            }
            start = end;
        }
    }

    /// The setting whose traffic the planner does not model, if there is one.
    pub fn unmodelled_traffic(&self) -> Option<String> {
        let stragglers = self.sync.stragglers.policy;
        (stragglers == StragglerPolicy::Shares)
            .then(|| format!("sync.stragglers = \"{stragglers}\""))
    }

    /// Number of steps of the round that begins at a step.
    fn round_len(&self, start: u64) -> u64 {
        let (steps, first) = (self.train.steps, self.first_round());
        let (from, to) = (self.sync.local_steps as f64, self.sync.final_local_steps as f64);
        let done = (start - first) as f64 / (steps - first).max(1) as f64;
        ((from + (to - from) * done.min(1.0)).round() as u64).max(1) * self.sync.inner_rounds
    }

    /// Fragments of the model that all workers average after `num_steps`, inside a round: each once
    /// in `sync.local_steps`.
    pub fn fragments_due(&self, num_steps: u64) -> impl Iterator<Item = usize> + use<> {
        let Sync { mode, fragments, inner_rounds, .. } = self.sync;
        let is_on = mode == SyncMode::LocalSgd && fragments > 1 && num_steps > self.first_round();
        let (mut offset, mut local_steps) = (0, 1);
        if is_on {
            let round = self.round_at(num_steps - 1);
            local_steps = self.round_len(round.start) / inner_rounds;
            let is_inside = num_steps < round.end;
            offset = if is_inside { num_steps - round.start } else { 0 };
        }
        let turn = move |fragment: usize| {
            let turn = (fragment as u64 + 1) * local_steps / fragments as u64;
            turn % local_steps == offset % local_steps
        };
        (0..fragments).filter(move |fragment| offset > 0 && turn(*fragment))
    }

    /// Whether the groups average among themselves after `num_steps`.
    pub fn is_group_sync_due(&self, num_steps: u64) -> bool {
        let sync = &self.sync;
        let first = self.first_round();
        if sync.mode != SyncMode::LocalSgd || sync.group_workers < 2 || num_steps <= first {
            return false;
        }
        let round = self.round_at(num_steps - 1);
        let local_steps = self.round_len(round.start) / sync.inner_rounds;
        num_steps < round.end && (num_steps - round.start).is_multiple_of(local_steps)
    }

    /// The first step that is part of a round.
    pub fn first_round(&self) -> u64 {
        (self.sync.synchronous_fraction * self.train.steps as f64).round() as u64
    }

    /// Whether the samples are partitioned.
    pub fn is_partitioned(&self) -> bool {
        self.sync.partition != SyncPartition::Shared
    }

    /// Number of parts of the partition: one per client or per leaf.
    pub fn num_parts(&self) -> usize {
        if self.is_federated() { self.federated.clients } else { self.num_leaves() }
    }

    /// Whether a worker takes a step. One with fewer steps than the round idles at its end.
    pub fn takes_step(&self, worker: usize, step: u64) -> bool {
        self.sync
            .worker_steps
            .get(worker)
            .is_none_or(|own| step < self.first_round() || step - self.round_at(step).start < *own)
    }

    /// Number of steps that a worker takes before `step`.
    pub fn steps_taken(&self, worker: usize, step: u64) -> u64 {
        let (first, len) = (self.first_round(), self.sync.local_steps);
        let Some(own) = self.sync.worker_steps.get(worker).filter(|_| step > first) else {
            return step;
        };
        let (rounds, rest) = ((step - first) / len, (step - first) % len);
        first + rounds * own + rest.min(*own)
    }

    /// The rounds of the run in order.
    pub fn rounds(&self) -> impl Iterator<Item = Range<u64>> {
        let steps = self.train.steps;
        let at = move |start: u64| {
            (start < steps).then(|| start..(start + self.round_len(start)).min(steps))
        };
        std::iter::successors(at(self.first_round()), move |round| at(round.end))
    }

    /// Number of rounds completed after `num_steps`.
    pub fn num_rounds(&self, num_steps: u64) -> u64 {
        let (mut start, mut rounds) = (self.first_round(), 0);
        while start < num_steps {
            start = self.round_at(start).end;
            rounds += 1;
        }
        rounds
    }

    /// Whether all workers have the same weights after `num_steps`.
    pub fn is_round_over(&self, num_steps: u64) -> bool {
        num_steps == 0 || self.round_at(num_steps - 1).end == num_steps
    }

    /// Whether an event with a period of `every` steps is due after `num_steps`: events wait for
    /// the end of a round.
    pub fn is_due_every(&self, every: u64, num_steps: u64) -> bool {
        if every == 0 || num_steps == 0 {
            return false;
        }
        let round = self.round_at(num_steps - 1);
        round.end == num_steps && round.start / every < num_steps / every
    }

    /// The recipe with a chosen number of local steps.
    #[must_use]
    pub fn with_local_steps(&self, local_steps: u64) -> Self {
        let mut recipe = self.clone();
        recipe.sync.local_steps_is_auto = false;
        (recipe.sync.local_steps, recipe.sync.final_local_steps) = (local_steps, local_steps);
        recipe
    }

    /// Whether resuming needs more than the weights and one optimizer state: local state of the
    /// workers, outer momentum or delayed gradients, which only checkpoints contain.
    pub fn has_extra_state(&self) -> bool {
        let has_more = self.sync.outer != Outer::None || self.compress.is_on();
        let is_elsewhere = self.is_federated() || self.num_servers() > 0;
        self.has_local_state() || has_more || is_elsewhere || self.sync.gradient_delay > 0
    }

    /// Whether each worker has local optimizer state between rounds.
    pub fn has_local_state(&self) -> bool {
        match self.sync.mode {
            SyncMode::AllReduce
            | SyncMode::ParameterServer
            | SyncMode::Federated
            | SyncMode::Hogwild => false,
            SyncMode::LocalSgd => self.sync.average == AverageScope::Weights,
            SyncMode::Gossip => true,
        }
    }

    /// Reason why the synchronization mode makes the result depend on the workers, if it does.
    pub(super) fn sync_dependence(&self) -> Option<String> {
        let (mode, consistency) = (self.sync.mode, self.sync.server.consistency);
        let why = match mode {
            SyncMode::AllReduce | SyncMode::Federated => return None,
            SyncMode::ParameterServer if consistency == Consistency::Sync => {
                "servers reduce the sums of workers, so a number of workers that is no power of \
                 two or other shares give other bits"
            }
            SyncMode::ParameterServer if consistency == Consistency::Elastic => {
                "an update takes the gradients that have arrived, so every run has other bits"
            }
            SyncMode::ParameterServer => {
                "gradients are applied on arrival, so every run has other bits"
            }
            SyncMode::Hogwild => "threads update without order, so every run has other bits",
            SyncMode::LocalSgd | SyncMode::Gossip => {
                "each worker takes local steps, so another number of workers or other shares give \
                 other bits"
            }
        };
        Some(format!("sync.mode = {mode}: {why}"))
    }

    /// Whether each worker has local weights.
    pub fn has_local_weights(&self) -> bool {
        self.sync.mode == SyncMode::Gossip
    }
}

/// The largest number up to `most` with a property that holds for 0 and for all numbers below it.
fn partition_point(most: u64, has: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if has(middle) { low = middle } else { high = middle }
    }
    low
}
