//! Finds the plan for a call, and keeps it.
//!
//! Choosing an algorithm and making a plan takes up to milliseconds; a training step makes the same
//! few calls again and again. So plans are kept, the one used last in front.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lockstep_config::units::{Bytes, Seconds};
use lockstep_mesh::Rank;
use lockstep_schedule::collective::select::{Candidate, Request, candidates, contenders, select};
use lockstep_schedule::collective::{Team, algorithms, build, sparse};
use lockstep_schedule::{
    Addends, Algorithm, Costs, Layout, Medium, Op, Rehearsal, Schedule, Topology, price,
};

use crate::element::{Dtype, Reduction};
use crate::engine::Notebook;
use crate::node::Node;
use crate::plan::{Facts, Plan};
use crate::probe::{Measured, Watch};
use crate::signature::Signature;

/// Plans that are kept.
const MAX_PLANS: usize = 256;

/// Choices that are kept.
const MAX_CHOICES: usize = 256;

/// What distinguishes plans.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) op: Op,
    pub(crate) dtype: Dtype,
    pub(crate) reduction: Option<Reduction>,
    /// The length of the whole vector, as a layout counts it.
    pub(crate) count: usize,
    /// The hash of the lengths of its chunks, where they are not even.
    pub(crate) lengths: u64,
    pub(crate) algorithm: Option<Algorithm>,
    /// Whether sums must have the canonical order.
    pub(crate) canonical: bool,
}

/// A plan with what it was made for.
pub(crate) struct Ready {
    wanted: Wanted,
    /// The lengths of the parts, where they are not even: a hash may meet its like.
    lengths: Vec<usize>,
    pub(crate) plan: Plan,
    pub(crate) algorithm: Algorithm,
    pub(crate) signature: Signature,
    pub(crate) notebook: Notebook,
    /// How long a call should take, and how long the quickest so far has taken.
    pub(crate) predicted: Duration,
    pub(crate) quickest: Duration,
}

/// An algorithm and what it would take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// How long it would take.
    pub seconds: Seconds,
}

/// The plans of one rank's end of a group.
pub(crate) struct Planner {
    team: Team,
    position: usize,
    costs: Costs,
    /// Whether all members see each other's memory.
    is_one_host: bool,
    /// The schedules without messages for each operation that was asked for.
    direct: BTreeMap<Op, Vec<Arc<Known>>>,
    /// The schedules that were chosen.
    chosen: BTreeMap<Key, Arc<Known>>,
    plans: VecDeque<Ready>,
    /// Looks at whether the links are still as they were.
    pub(crate) watch: Watch,
}

impl Planner {
    pub(crate) fn new(node: &Node, members: &[Rank], position: usize, addends: Addends) -> Self {
        let domains: Vec<usize> = members.iter().map(|rank| node.domains()[rank.0]).collect();
        let is_one_host =
            node.shared().is_some() && domains.iter().all(|&domain| domain == domains[0]);
        let topology = if is_one_host {
            Topology::flat(members.len(), Medium::Memory)
        } else {
            Topology::by_host(&domains)
        };
        let team = Team { addends, topology: Some(topology), ring: Vec::new() };
        let costs = Costs::of_one_host(node.shared().is_some());
        let (direct, chosen) = (BTreeMap::new(), BTreeMap::new());
        let (plans, watch) = (VecDeque::new(), Watch::default());
        let mut planner = Self { team, position, costs, is_one_host, direct, chosen, plans, watch };
        if let Some(measured) = node.measured().filter(|_| !is_one_host && members.len() > 1) {
            let ranks: Vec<usize> = members.iter().map(|rank| rank.0).collect();
            let links = measured.links.among(&ranks);
            let mut measured = Measured { links, ..measured.clone() };
            // What so many ranks do to each other says nothing of fewer.
            if members.len() < node.num_ranks() {
                measured.rehearsal = Rehearsal::NONE;
            }
            planner.reprice(&measured);
        }
        planner
    }

    /// Whether some members are reached by messages only.
    pub(crate) fn has_links(&self) -> bool {
        !self.is_one_host
    }

    /// What algorithms are chosen by.
    pub(crate) fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Chooses by what was measured from now on.
    pub(crate) fn reprice(&mut self, measured: &Measured) {
        let Measured { links, port, per_message, local, near, crowd, rehearsal } = measured;
        self.team.ring = links.ring_order();
        self.costs.links = links.clone();
        (self.costs.port, self.costs.per_message) = (Some(*port), *per_message);
        (self.costs.local, self.costs.near, self.costs.crowd) = (*local, *near, *crowd);
        self.costs.rehearsal = rehearsal.clone();
        self.chosen.clear();
        self.plans.clear();
        self.direct.clear();
        self.watch.begin();
    }

    /// Chooses by prices that are corrected from now on.
    pub(crate) fn correct(&mut self, rehearsal: &Rehearsal) {
        self.costs.rehearsal = rehearsal.clone();
        self.chosen.clear();
        self.plans.clear();
    }

    /// The algorithms that are worth trying out.
    pub(crate) fn contenders(&self, op: Op, bytes: usize) -> Vec<Candidate> {
        let (team, element, canonical) = (&self.team, Bytes(1), false);
        contenders(&Request { op, team, count: bytes, element, canonical }, &self.costs)
    }

    /// Notes how long the call took that was found last.
    pub(crate) fn note(&mut self, took: Duration) {
        let Some(ready) = self.plans.front_mut() else { return };
        // A price may be wrong by as much as it likes: what counts is what was reached before.
        if ready.quickest < Duration::MAX {
            self.watch.note(took, ready.predicted.max(ready.quickest));
        }
        ready.quickest = ready.quickest.min(took);
    }

    /// Every algorithm for a call with what it would take, the one that is taken first.
    pub(crate) fn forecasts(&mut self, wanted: &Wanted) -> Result<Vec<Forecast>, String> {
        let known = self.schedule(wanted)?;
        let chosen = known.schedule.algorithm;
        let key = Key::of(wanted);
        let (team, count, element) = (&self.team, key.size_class, Bytes(1));
        let request = Request { op: key.op, team, count, element, canonical: key.canonical };
        let all = candidates(&request, &self.costs).into_iter();
        let mut forecasts: Vec<Forecast> =
            all.map(|each| Forecast { algorithm: each.algorithm, seconds: each.seconds }).collect();
        forecasts.sort_by_key(|forecast| forecast.algorithm != chosen);
        Ok(forecasts)
    }

    /// Whether an algorithm can carry out an operation in this group.
    pub(crate) fn offers(&self, op: Op, algorithm: Algorithm) -> bool {
        let Ok(schedule) = build(op, algorithm, &self.team) else { return false };
        let domains = self.team.topology.as_ref().map(Topology::memory_domains);
        schedule.memory_pairs().all(|(one, other)| {
            domains.as_ref().is_some_and(|domains| domains[one] == domains[other])
        })
    }

    /// The plan for a call; an error says what would work.
    #[inline]
    pub(crate) fn find(
        &mut self,
        wanted: &Wanted,
        lengths: &[usize],
    ) -> Result<&mut Ready, String> {
        let is_in_front = self.plans.front().is_some_and(|ready| ready.is_for(wanted, lengths));
        if !is_in_front {
            self.bring_to_front(wanted, lengths)?;
        }
        Ok(&mut self.plans[0])
    }

    fn bring_to_front(&mut self, wanted: &Wanted, lengths: &[usize]) -> Result<(), String> {
        let index = self.plans.iter().position(|ready| ready.is_for(wanted, lengths));
        let kept = index.and_then(|index| self.plans.remove(index));
        let ready = kept.map_or_else(|| self.make(wanted, lengths), Ok)?;
        self.plans.truncate(MAX_PLANS - 1);
        self.plans.push_front(ready);
        Ok(())
    }

    fn make(&mut self, wanted: &Wanted, lengths: &[usize]) -> Result<Ready, String> {
        let &Wanted { op, dtype, reduction, count, .. } = wanted;
        let num_ranks = self.team.num_ranks();
        if op.root().is_some_and(|root| root >= num_ranks) {
            return Err(format!("there are {num_ranks} ranks, counted from 0"));
        }
        let known = self.schedule(wanted)?;
        let layout = match lengths {
            [] => Layout::even(&known.schedule, count),
            lengths if op == Op::AllToAll => Layout::explicit(&known.schedule, lengths),
            lengths => Layout::by_part(&known.schedule, lengths),
        };
        let plan = Plan::new(&known.schedule, &known.facts, &layout, dtype, self.position);
        let algorithm = known.schedule.algorithm;
        let signature = Signature::new(op, dtype, reduction, algorithm, count, wanted.lengths);
        let (lengths, notebook) = (lengths.to_vec(), Notebook::default());
        let (topology, element) = (self.team.topology.as_ref(), Bytes(dtype.bytes() as u64));
        let seconds = price(&known.schedule, &layout, element, &self.costs, topology).0;
        let predicted = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        let (wanted, quickest) = (*wanted, Duration::MAX);
        Ok(Ready { wanted, lengths, plan, algorithm, signature, notebook, predicted, quickest })
    }

    /// How to add up tables of which the ranks have some rows each; `gather` is the call that
    /// would gather the rows.
    pub(crate) fn sparse(
        &mut self,
        table: sparse::Table,
        num_rows_by_rank: &[usize],
        gather: &Wanted,
    ) -> Result<sparse::Plan, String> {
        let known = self.schedule(gather)?;
        Ok(sparse::plan(table, num_rows_by_rank, &known.schedule))
    }

    /// The order of a ring, where it was chosen.
    #[cfg(test)]
    pub(crate) fn ring(&self) -> &[usize] {
        &self.team.ring
    }

    /// Every call from now on counts as a slow one until links are measured again.
    #[cfg(test)]
    pub(crate) fn expect_nothing_less(&mut self) {
        for ready in &mut self.plans {
            (ready.predicted, ready.quickest) = (Duration::ZERO, Duration::ZERO);
        }
        self.watch.find_all_slow();
    }

    /// From now on calls like this one follow `schedule`, whatever it does.
    #[cfg(test)]
    pub(crate) fn follow(&mut self, wanted: &Wanted, schedule: Schedule) {
        let known = Arc::new(Known::new(schedule, self.position));
        self.plans.clear();
        self.chosen.insert(Key::of(wanted), known);
    }

    /// The schedule for a call. It depends on the size only roughly, so that all ranks, and calls
    /// of nearly the same size, find the same one.
    fn schedule(&mut self, wanted: &Wanted) -> Result<Arc<Known>, String> {
        let key = Key::of(wanted);
        let Key { op, algorithm, canonical, size_class } = key;
        if let Some(known) = self.chosen.get(&key) {
            return Ok(Arc::clone(known));
        }
        let chosen = match algorithm {
            None if self.is_one_host => self.cheapest_direct(op, size_class),
            _ => None,
        };
        let select_any = || -> Result<Arc<Known>, String> {
            let (team, count, element) = (&self.team, size_class, Bytes(1));
            let request = Request { op, team, count, element, canonical };
            let found = select(&request, &self.costs, algorithm).map_err(|e| e.to_string())?;
            Ok(Arc::new(Known::new(found.schedule, self.position)))
        };
        let known = chosen.map_or_else(select_any, Ok)?;
        if self.chosen.len() == MAX_CHOICES {
            self.chosen.pop_first();
        }
        self.chosen.insert(key, Arc::clone(&known));
        Ok(known)
    }

    /// Where all see each other's memory, a message is a detour: it is copied into a ring and out
    /// of it. So there only schedules without messages are compared, all of which add canonically.
    fn cheapest_direct(&mut self, op: Op, bytes: usize) -> Option<Arc<Known>> {
        let (team, position) = (&self.team, self.position);
        let direct = self.direct.entry(op).or_insert_with(|| {
            let built = algorithms(op).iter().filter_map(|&each| build(op, each, team).ok());
            let direct = built.filter(|schedule| !schedule.needs_messages());
            direct.map(|schedule| Arc::new(Known::new(schedule, position))).collect()
        });
        let seconds = |known: &Arc<Known>| {
            let layout = Layout::even(&known.schedule, bytes);
            price(&known.schedule, &layout, Bytes(1), &self.costs, team.topology.as_ref()).0
        };
        let priced = direct.iter().map(|known| (seconds(known), known));
        let cheapest = priced.min_by(|(one, _), (other, _)| one.total_cmp(other));
        cheapest.map(|(_, known)| Arc::clone(known))
    }
}

/// A schedule and what is known about it.
struct Known {
    schedule: Schedule,
    facts: Facts,
}

impl Known {
    fn new(schedule: Schedule, position: usize) -> Self {
        let facts = Facts::new(&schedule, position);
        Self { schedule, facts }
    }
}

/// What the choice of a schedule depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    op: Op,
    algorithm: Option<Algorithm>,
    canonical: bool,
    size_class: usize,
}

impl Key {
    fn of(wanted: &Wanted) -> Self {
        let bytes = wanted.count.saturating_mul(wanted.dtype.bytes());
        let Wanted { op, algorithm, canonical, .. } = *wanted;
        Self { op, algorithm, canonical, size_class: bytes.next_power_of_two() }
    }
}

impl Ready {
    #[inline]
    fn is_for(&self, wanted: &Wanted, lengths: &[usize]) -> bool {
        self.wanted == *wanted && (lengths.is_empty() || self.lengths == lengths)
    }
}
