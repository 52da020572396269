//! When workers agree, and the rounds that a run is cut into where that is not after every step.

use std::fmt;
use std::ops::Range;

use super::{
    AggregationRule, Consistency, Gossip, Recipe, Server, StragglerPolicy, Stragglers, SyncMode,
};

/// When workers agree, and on what.
#[derive(Debug, Clone, PartialEq)]
pub struct Sync {
    /// In every step or in rounds.
    pub mode: SyncMode,
    /// Steps of a round at the beginning; at least 1.
    pub local_steps: u64,
    /// Whether workers choose it when they have measured their links; it is 1 until then.
    pub local_steps_is_auto: bool,
    /// Steps of a round at the end; at least 1.
    pub final_local_steps: u64,
    /// Steps that each worker takes of a round; nothing where all take all of them.
    pub worker_steps: Vec<u64>,
    /// Consecutive workers that average among themselves after so many steps; below 2 there are no
    /// such groups.
    pub group_workers: usize,
    /// Fragments of the model that all workers average in turn; 1 averages all of it at once.
    pub fragments: usize,
    /// How often groups or fragments do so until all workers average everything; a round has so
    /// many times as many steps.
    pub inner_rounds: u64,
    /// The share of the run before the first round.
    pub synchronous_fraction: f64,
    /// What is averaged.
    pub average: AverageScope,
    /// What becomes of the mean change of a round.
    pub outer: Outer,
    /// Which samples meet where.
    pub partition: SyncPartition,
    /// How alike parts are, where they are drawn from Dirichlet's distribution.
    pub dirichlet_alpha: f64,
    /// Learning rate of the outer optimizer.
    pub outer_lr: f64,
    /// Momentum of the outer optimizer.
    pub outer_momentum: f64,
    /// What becomes of workers that are late, and of gradients.
    pub stragglers: Stragglers,
    /// Number of steps by which gradients are applied late.
    pub gradient_delay: u64,
    /// Who averages with whom.
    pub gossip: Gossip,
    /// How servers hold the weights.
    pub server: Server,
    /// Threads that step the same weights without a lock.
    pub threads: usize,
}

impl Sync {
    /// Whether what workers tell each other or servers is more than averaged, or may be a lie.
    pub fn has_byzantine_settings(&self) -> bool {
        let Server { aggregation, gradient_clip, byzantine, .. } = &self.server;
        *aggregation != AggregationRule::Mean || *gradient_clip > 0.0 || *byzantine > 0
    }
}

choices! {
    /// What workers average at the end of a round.
    AverageScope {
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
            // Rounds of one length follow each other; those that end before the step are skipped
            // at once, so that this takes as long as there are lengths, and not rounds.
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

    /// What makes workers send and keep something else than forecasts count: the sum of all
    /// gradients, in every step and perhaps compressed, or of all changes, in every round, or what
    /// neighbours say.
    pub fn unmodelled_traffic(&self) -> Option<String> {
        match self.sync.mode {
            SyncMode::LocalSgd if self.sync.local_steps_is_auto => {
                return Some("sync.local_steps = \"auto\"".to_owned());
            }
            SyncMode::LocalSgd if self.sync.average == AverageScope::State => {
                return Some(format!("sync.average = \"{}\"", self.sync.average));
            }
            SyncMode::Gossip if self.sync.has_byzantine_settings() => {
                return Some("sync.mode = \"gossip\" among liars".to_owned());
            }
            SyncMode::AllReduce | SyncMode::LocalSgd | SyncMode::Gossip => {}
            mode => return Some(format!("sync.mode = \"{mode}\"")),
        }
        let stragglers = self.sync.stragglers.policy;
        if stragglers != StragglerPolicy::Wait {
            return Some(format!("sync.stragglers = \"{stragglers}\""));
        }
        let group = self.compress.group_workers;
        (self.compress.is_on() && group > 1).then(|| format!("compress.group_workers = {group}"))
    }

    /// What takes time that forecasts do not price, though they count the rest.
    pub fn unmodelled_time(&self) -> Option<String> {
        if self.sync.mode == SyncMode::Gossip {
            return Some(format!("sync.mode = \"{}\"", self.sync.mode));
        }
        let method = self.compress.method;
        self.compress.is_on().then(|| format!("compress.method = \"{method}\""))
    }

    /// Steps of the round that begins at a step, where their number changes.
    fn round_len(&self, start: u64) -> u64 {
        let (steps, first) = (self.train.steps, self.first_round());
        let (from, to) = (self.sync.local_steps as f64, self.sync.final_local_steps as f64);
        let done = (start - first) as f64 / (steps - first).max(1) as f64;
        ((from + (to - from) * done.min(1.0)).round() as u64).max(1) * self.sync.inner_rounds
    }

    /// Those fragments of the model that all workers average after so many steps, inside a round:
    /// each once in as many steps as a round has without any.
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

    /// Whether workers that are close average among themselves after so many steps.
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

    /// Whether samples are divided into parts that differ.
    pub fn is_partitioned(&self) -> bool {
        self.sync.partition != SyncPartition::Shared
    }

    /// How many parts samples are divided into: one for each client, or for each leaf.
    pub fn num_parts(&self) -> usize {
        if self.is_federated() { self.federated.clients } else { self.num_leaves() }
    }

    /// Whether a worker takes a step. One that has fewer steps than a round rests at its end.
    pub fn takes_step(&self, worker: usize, step: u64) -> bool {
        self.sync
            .worker_steps
            .get(worker)
            .is_none_or(|own| step < self.first_round() || step - self.round_at(step).start < *own)
    }

    /// Steps that a worker takes before one.
    pub fn steps_taken(&self, worker: usize, step: u64) -> u64 {
        let (first, len) = (self.first_round(), self.sync.local_steps);
        let Some(own) = self.sync.worker_steps.get(worker).filter(|_| step > first) else {
            return step;
        };
        let (rounds, rest) = ((step - first) / len, (step - first) % len);
        first + rounds * own + rest.min(*own)
    }

    /// The rounds of a run one after the other, from the first on.
    pub fn rounds(&self) -> impl Iterator<Item = Range<u64>> {
        let steps = self.train.steps;
        let at = move |start: u64| {
            (start < steps).then(|| start..(start + self.round_len(start)).min(steps))
        };
        std::iter::successors(at(self.first_round()), move |round| at(round.end))
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

    /// The same run with rounds of so many steps, once they were chosen.
    #[must_use]
    pub fn with_local_steps(&self, local_steps: u64) -> Self {
        let mut recipe = self.clone();
        recipe.sync.local_steps_is_auto = false;
        (recipe.sync.local_steps, recipe.sync.final_local_steps) = (local_steps, local_steps);
        recipe
    }

    /// Whether going on takes more than weights and one optimizer's state: what each worker keeps
    /// for itself, the momentum of rounds, or gradients on their way. Only checkpoints hold that.
    pub fn has_extra_state(&self) -> bool {
        let has_more = self.sync.outer != Outer::None || self.compress.is_on();
        let is_elsewhere = self.is_federated() || self.num_servers() > 0;
        self.has_local_state() || has_more || is_elsewhere || self.sync.gradient_delay > 0
    }

    /// Whether each worker has optimizer state of its own between rounds.
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

    /// Why bits depend on workers, where they do for how these agree.
    pub(super) fn sync_dependence(&self) -> Option<String> {
        let (mode, consistency) = (self.sync.mode, self.sync.server.consistency);
        let why = match mode {
            SyncMode::AllReduce | SyncMode::Federated => return None,
            SyncMode::ParameterServer if consistency == Consistency::Sync => {
                "servers add up the sums of workers, so a number of workers that is no power of \
                 two or other shares give other bits"
            }
            SyncMode::ParameterServer if consistency == Consistency::Elastic => {
                "an update takes the gradients that have come, so every run has other bits"
            }
            SyncMode::ParameterServer => {
                "gradients are taken as they come, so every run has other bits"
            }
            SyncMode::Hogwild => "threads step as they come, so every run has other bits",
            SyncMode::LocalSgd | SyncMode::Gossip => {
                "each worker takes steps of its own, so another number of workers or other shares \
                 give other bits"
            }
        };
        Some(format!("sync.mode = {mode}: {why}"))
    }

    /// Whether each worker steps by the gradients of its own micro-batches and has weights of its own.
    pub fn has_local_weights(&self) -> bool {
        self.sync.mode == SyncMode::Gossip
    }
}

/// The largest number up to `most` that has a property, where all below it have it; 0 has it.
fn partition_point(most: u64, has: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, most + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if has(middle) { low = middle } else { high = middle }
    }
    low
}
