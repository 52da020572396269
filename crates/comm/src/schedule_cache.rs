//! Schedule cache: selects, prepares and keeps the schedules of a group.
//!
//! Selecting an algorithm and preparing its schedule takes up to milliseconds, and a training step
//! repeats the same few calls. So prepared schedules are kept, the most recently used in front.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lockstep_config::units::{Bytes, Seconds};
use lockstep_mesh::Rank;
use lockstep_schedule::collective::select::{
    CallClass, Candidate, Request, Selector, candidates, contenders,
};
use lockstep_schedule::collective::{build, sparse};
use lockstep_schedule::{
    Algorithm, Contributions, Costs, Layout, Op, Schedule, Topology, TuningTable, price,
};

use crate::element::{Dtype, Reduction};
use crate::endpoint::Endpoint;
use crate::engine::ReplayCache;
use crate::prepared_schedule::{PreparedSchedule, ScheduleFacts};
use crate::probe::{LinkMeasurements, SlowdownDetector};
use crate::signature::Signature;

/// Capacity for prepared schedules.
const MAX_PREPARED: usize = 256;

/// Capacity for selected schedules.
const MAX_CHOICES: usize = 256;

/// Key of a prepared schedule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ScheduleKey {
    pub(crate) op: Op,
    pub(crate) dtype: Dtype,
    pub(crate) reduction: Option<Reduction>,
    /// Length of the whole vector, as a layout counts it.
    pub(crate) count: usize,
    /// Hash of the lengths of its parts; 0 for even parts.
    pub(crate) lengths: u64,
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether sums must use the canonical order.
    pub(crate) canonical: bool,
}

/// A prepared schedule with its key.
pub(crate) struct CachedSchedule {
    key: ScheduleKey,
    /// Lengths of the parts unless even, because hashes may collide.
    lengths: Vec<usize>,
    pub(crate) prepared: PreparedSchedule,
    pub(crate) algorithm: Algorithm,
    pub(crate) signature: Signature,
    pub(crate) replays: ReplayCache,
    /// Predicted time of a call, and the shortest time so far.
    pub(crate) predicted: Duration,
    pub(crate) fastest: Duration,
}

/// Predicted time of an algorithm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Predicted time of one call.
    pub seconds: Seconds,
}

/// Schedules of one rank in a group.
pub(crate) struct ScheduleCache {
    selector: Selector,
    group_rank: usize,
    /// Selected schedules.
    chosen: BTreeMap<CallClass, Arc<ChosenSchedule>>,
    prepared: VecDeque<CachedSchedule>,
    /// Detects links that have become slower.
    pub(crate) slowdown: SlowdownDetector,
}

impl ScheduleCache {
    pub(crate) fn new(
        endpoint: &Endpoint,
        ranks: &[Rank],
        group_rank: usize,
        contributions: Contributions,
    ) -> Self {
        let domains: Vec<usize> = ranks.iter().map(|rank| endpoint.domains()[rank.0]).collect();
        let overrides = endpoint.overrides();
        let costs = Costs { overrides, ..Costs::of_one_host(endpoint.shared().is_some()) };
        let selector = Selector::new(contributions, &domains, costs);
        let is_one_host = selector.is_one_host();
        let (chosen, prepared, slowdown) =
            (BTreeMap::new(), VecDeque::new(), SlowdownDetector::default());
        let mut schedules = Self { selector, group_rank, chosen, prepared, slowdown };
        if let Some(measured) = endpoint.measured().filter(|_| !is_one_host && ranks.len() > 1) {
            let ranks_in_world: Vec<usize> = ranks.iter().map(|rank| rank.0).collect();
            let links = measured.links.among(&ranks_in_world);
            let mut measured = LinkMeasurements { links, ..measured.clone() };
            // Trials of the whole world do not apply to a smaller group.
            if ranks.len() < endpoint.num_ranks() {
                measured.tuning = TuningTable::NONE;
            }
            schedules.reprice(&measured);
        }
        schedules
    }

    /// Whether some ranks of the group share no memory.
    pub(crate) fn has_links(&self) -> bool {
        !self.selector.is_one_host()
    }

    /// Costs by which algorithms are selected.
    pub(crate) fn costs(&self) -> &Costs {
        self.selector.costs()
    }

    /// Selects by measured costs from now on.
    pub(crate) fn reprice(&mut self, measured: &LinkMeasurements) {
        let &LinkMeasurements {
            ref links,
            port,
            per_message,
            local,
            cache,
            core_contention,
            ref tuning,
        } = measured;
        let &Costs { messages, memory, ref overrides, .. } = self.costs();
        let (links, port, tuning) = (links.clone(), Some(port), tuning.clone());
        let overrides = overrides.clone();
        let costs = Costs {
            messages,
            links,
            port,
            per_message,
            cache,
            core_contention,
            memory,
            local,
            tuning,
            overrides,
        };
        self.selector.reprice(costs);
        self.chosen.clear();
        self.prepared.clear();
        self.slowdown.begin();
    }

    /// Selects by corrected predictions from now on.
    pub(crate) fn correct(&mut self, tuning: &TuningTable) {
        let costs = Costs { tuning: tuning.clone(), ..self.costs().clone() };
        self.selector.reprice(costs);
        self.chosen.clear();
        self.prepared.clear();
    }

    /// Algorithms with similar predictions, worth a trial.
    pub(crate) fn contenders(&self, op: Op, bytes: usize) -> Vec<Candidate> {
        let (group, element, canonical) = (self.selector.group(), Bytes(1), false);
        contenders(&Request { op, group, count: bytes, element, canonical }, self.costs())
    }

    /// Records the duration of the last call.
    pub(crate) fn record_duration(&mut self, took: Duration) {
        let Some(cached) = self.prepared.front_mut() else { return };
        // Predictions may be far off: compare with the best time so far, unless it was an outlier.
        if cached.fastest < Duration::MAX {
            let expected = cached.predicted.clamp(cached.fastest, 3 * cached.fastest);
            self.slowdown.record(took, expected);
        }
        cached.fastest = cached.fastest.min(took);
    }

    /// Predicted time of every algorithm for a call, the selected one first.
    pub(crate) fn forecasts(&mut self, key: &ScheduleKey) -> Result<Vec<Forecast>, String> {
        let choice = self.schedule(key)?;
        let chosen = choice.schedule.algorithm;
        let request = self.class(key).request(self.selector.group());
        let all = candidates(&request, self.costs()).into_iter();
        let mut forecasts: Vec<Forecast> =
            all.map(|each| Forecast { algorithm: each.algorithm, seconds: each.seconds }).collect();
        forecasts.sort_by_key(|forecast| forecast.algorithm != chosen);
        Ok(forecasts)
    }

    /// Whether an algorithm supports an operation in this group.
    pub(crate) fn offers(&self, op: Op, algorithm: Algorithm) -> bool {
        let group = self.selector.group();
        let Ok(schedule) = build(op, algorithm, group) else { return false };
        let domains = group.topology.as_ref().map(Topology::memory_domains);
        schedule.memory_pairs().all(|(one, other)| {
            domains.as_ref().is_some_and(|domains| domains[one] == domains[other])
        })
    }

    /// The prepared schedule of a call; an error says what would work.
    #[inline]
    pub(crate) fn find(
        &mut self,
        key: &ScheduleKey,
        lengths: &[usize],
    ) -> Result<&mut CachedSchedule, String> {
        let is_in_front = self.prepared.front().is_some_and(|cached| cached.is_for(key, lengths));
        if !is_in_front {
            self.bring_to_front(key, lengths)?;
        }
        Ok(&mut self.prepared[0])
    }

    fn bring_to_front(&mut self, key: &ScheduleKey, lengths: &[usize]) -> Result<(), String> {
        let index = self.prepared.iter().position(|cached| cached.is_for(key, lengths));
        let kept = index.and_then(|index| self.prepared.remove(index));
        let cached = kept.map_or_else(|| self.make(key, lengths), Ok)?;
        self.prepared.truncate(MAX_PREPARED - 1);
        self.prepared.push_front(cached);
        Ok(())
    }

    fn make(&mut self, key: &ScheduleKey, lengths: &[usize]) -> Result<CachedSchedule, String> {
        let &ScheduleKey { op, dtype, reduction, count, .. } = key;
        let num_ranks = self.selector.group().num_ranks();
        if op.root().is_some_and(|root| root >= num_ranks) {
            return Err(format!("there are {num_ranks} ranks, counted from 0"));
        }
        let choice = self.schedule(key)?;
        let layout = match lengths {
            [] => Layout::even(&choice.schedule, count),
            lengths if op == Op::AllToAll => Layout::explicit(&choice.schedule, lengths),
            lengths => Layout::by_part(&choice.schedule, lengths),
        };
        let prepared =
            PreparedSchedule::new(&choice.schedule, &choice.facts, &layout, dtype, self.group_rank);
        let algorithm = choice.schedule.algorithm;
        let signature = Signature::new(op, dtype, reduction, algorithm, count, key.lengths);
        let (lengths, replays) = (lengths.to_vec(), ReplayCache::default());
        let topology = self.selector.group().topology.as_ref();
        let element = Bytes(dtype.bytes() as u64);
        let seconds = price(&choice.schedule, &layout, element, self.costs(), topology).0;
        let predicted = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let (key, fastest) = (*key, Duration::MAX);
        Ok(CachedSchedule {
            key,
            lengths,
            prepared,
            algorithm,
            signature,
            replays,
            predicted,
            fastest,
        })
    }

    /// Method for a sparse all-reduce; `gather` is the key of the all-gather of the rows.
    pub(crate) fn sparse(
        &mut self,
        table: sparse::Table,
        num_rows_by_rank: &[usize],
        gather: &ScheduleKey,
    ) -> Result<sparse::Plan, String> {
        let choice = self.schedule(gather)?;
        Ok(sparse::plan(table, num_rows_by_rank, &choice.schedule))
    }

    /// The order of the ranks in a ring.
    #[cfg(test)]
    pub(crate) fn ring(&self) -> &[usize] {
        &self.selector.group().ring
    }

    /// Makes every call count as slow until links are measured again.
    #[cfg(test)]
    pub(crate) fn expect_instant_calls(&mut self) {
        for cached in &mut self.prepared {
            (cached.predicted, cached.fastest) = (Duration::ZERO, Duration::ZERO);
        }
        self.slowdown.mark_all_slow();
    }

    /// Forces calls with this key to use `schedule`.
    #[cfg(test)]
    pub(crate) fn force_schedule(&mut self, key: &ScheduleKey, schedule: Schedule) {
        let choice = Arc::new(ChosenSchedule::new(Arc::new(schedule), self.group_rank));
        self.prepared.clear();
        self.chosen.insert(self.class(key), choice);
    }

    /// Inputs of the selection.
    fn class(&self, key: &ScheduleKey) -> CallClass {
        let bytes = key.count.saturating_mul(key.dtype.bytes());
        self.selector.class(key.op, bytes, key.canonical, key.algorithm)
    }

    /// The selected schedule of a call.
    fn schedule(&mut self, key: &ScheduleKey) -> Result<Arc<ChosenSchedule>, String> {
        let kind = self.class(key);
        if let Some(choice) = self.chosen.get(&kind) {
            return Ok(Arc::clone(choice));
        }
        let schedule = self.selector.choose(&kind).map_err(|error| error.to_string())?;
        let choice = Arc::new(ChosenSchedule::new(schedule, self.group_rank));
        if self.chosen.len() == MAX_CHOICES {
            self.chosen.pop_first();
        }
        self.chosen.insert(kind, Arc::clone(&choice));
        Ok(choice)
    }
}

/// A selected schedule and its properties.
struct ChosenSchedule {
    schedule: Arc<Schedule>,
    facts: ScheduleFacts,
}

impl ChosenSchedule {
    fn new(schedule: Arc<Schedule>, group_rank: usize) -> Self {
        let facts = ScheduleFacts::new(&schedule, group_rank);
        Self { schedule, facts }
    }
}

impl CachedSchedule {
    #[inline]
    fn is_for(&self, key: &ScheduleKey, lengths: &[usize]) -> bool {
        self.key == *key && (lengths.is_empty() || self.lengths == lengths)
    }
}
