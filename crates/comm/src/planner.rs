//! Finds the plan for a call, and keeps it.
//!
//! Choosing an algorithm and making a plan takes up to milliseconds; a training step makes the same
//! few calls again and again. So plans are kept, the one used last in front.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use lockstep_config::units::{Bytes, Seconds};
use lockstep_mesh::Rank;
use lockstep_schedule::collective::select::{
    Candidate, Kind, Request, Selector, candidates, contenders,
};
use lockstep_schedule::collective::{build, sparse};
use lockstep_schedule::{
    Addends, Algorithm, Costs, Layout, Op, Rehearsal, Schedule, Topology, price,
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
    selector: Selector,
    position: usize,
    /// The schedules that were chosen.
    chosen: BTreeMap<Kind, Arc<Known>>,
    plans: VecDeque<Ready>,
    /// Looks at whether the links are still as they were.
    pub(crate) watch: Watch,
}

impl Planner {
    pub(crate) fn new(node: &Node, members: &[Rank], position: usize, addends: Addends) -> Self {
        let domains: Vec<usize> = members.iter().map(|rank| node.domains()[rank.0]).collect();
        let costs = Costs::of_one_host(node.shared().is_some());
        let selector = Selector::new(addends, &domains, costs);
        let is_one_host = selector.is_one_host();
        let (chosen, plans, watch) = (BTreeMap::new(), VecDeque::new(), Watch::default());
        let mut planner = Self { selector, position, chosen, plans, watch };
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
        !self.selector.is_one_host()
    }

    /// What algorithms are chosen by.
    pub(crate) fn costs(&self) -> &Costs {
        self.selector.costs()
    }

    /// Chooses by what was measured from now on.
    pub(crate) fn reprice(&mut self, measured: &Measured) {
        let &Measured { ref links, port, per_message, local, near, crowd, ref rehearsal } =
            measured;
        let &Costs { messages, memory, .. } = self.costs();
        let (links, port, rehearsal) = (links.clone(), Some(port), rehearsal.clone());
        let costs =
            Costs { messages, links, port, per_message, near, crowd, memory, local, rehearsal };
        self.selector.reprice(costs);
        self.chosen.clear();
        self.plans.clear();
        self.watch.begin();
    }

    /// Chooses by prices that are corrected from now on.
    pub(crate) fn correct(&mut self, rehearsal: &Rehearsal) {
        let costs = Costs { rehearsal: rehearsal.clone(), ..self.costs().clone() };
        self.selector.reprice(costs);
        self.chosen.clear();
        self.plans.clear();
    }

    /// The algorithms that are worth trying out.
    pub(crate) fn contenders(&self, op: Op, bytes: usize) -> Vec<Candidate> {
        let (team, element, canonical) = (self.selector.team(), Bytes(1), false);
        contenders(&Request { op, team, count: bytes, element, canonical }, self.costs())
    }

    /// Notes how long the call took that was found last.
    pub(crate) fn note(&mut self, took: Duration) {
        let Some(ready) = self.plans.front_mut() else { return };
        // A price may be wrong by as much as it likes: what counts is what was reached before,
        // unless that was a stroke of luck.
        if ready.quickest < Duration::MAX {
            let usual = ready.predicted.clamp(ready.quickest, 3 * ready.quickest);
            self.watch.note(took, usual);
        }
        ready.quickest = ready.quickest.min(took);
    }

    /// Every algorithm for a call with what it would take, the one that is taken first.
    pub(crate) fn forecasts(&mut self, wanted: &Wanted) -> Result<Vec<Forecast>, String> {
        let known = self.schedule(wanted)?;
        let chosen = known.schedule.algorithm;
        let request = wanted.kind().request(self.selector.team());
        let all = candidates(&request, self.costs()).into_iter();
        let mut forecasts: Vec<Forecast> =
            all.map(|each| Forecast { algorithm: each.algorithm, seconds: each.seconds }).collect();
        forecasts.sort_by_key(|forecast| forecast.algorithm != chosen);
        Ok(forecasts)
    }

    /// Whether an algorithm can carry out an operation in this group.
    pub(crate) fn offers(&self, op: Op, algorithm: Algorithm) -> bool {
        let team = self.selector.team();
        let Ok(schedule) = build(op, algorithm, team) else { return false };
        let domains = team.topology.as_ref().map(Topology::memory_domains);
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
        let num_ranks = self.selector.team().num_ranks();
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
        let topology = self.selector.team().topology.as_ref();
        let element = Bytes(dtype.bytes() as u64);
        let seconds = price(&known.schedule, &layout, element, self.costs(), topology).0;
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
        &self.selector.team().ring
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
        let known = Arc::new(Known::new(Arc::new(schedule), self.position));
        self.plans.clear();
        self.chosen.insert(wanted.kind(), known);
    }

    /// The schedule for a call.
    fn schedule(&mut self, wanted: &Wanted) -> Result<Arc<Known>, String> {
        let kind = wanted.kind();
        if let Some(known) = self.chosen.get(&kind) {
            return Ok(Arc::clone(known));
        }
        let schedule = self.selector.choose(&kind).map_err(|error| error.to_string())?;
        let known = Arc::new(Known::new(schedule, self.position));
        if self.chosen.len() == MAX_CHOICES {
            self.chosen.pop_first();
        }
        self.chosen.insert(kind, Arc::clone(&known));
        Ok(known)
    }
}

/// A schedule and what is known about it.
struct Known {
    schedule: Arc<Schedule>,
    facts: Facts,
}

impl Known {
    fn new(schedule: Arc<Schedule>, position: usize) -> Self {
        let facts = Facts::new(&schedule, position);
        Self { schedule, facts }
    }
}

impl Wanted {
    /// What the choice of a schedule depends on.
    fn kind(&self) -> Kind {
        let bytes = self.count.saturating_mul(self.dtype.bytes());
        Kind::new(self.op, bytes, self.canonical, self.algorithm)
    }
}

impl Ready {
    #[inline]
    fn is_for(&self, wanted: &Wanted, lengths: &[usize]) -> bool {
        self.wanted == *wanted && (lengths.is_empty() || self.lengths == lengths)
    }
}
