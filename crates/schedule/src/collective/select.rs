//! Selection of an algorithm: the cheapest schedule of all candidates.
//!
//! The choice is a pure function of the operation, the group, the length and the measured costs, so
//! ranks that agree on those agree on the algorithm. It builds and prices about ten schedules,
//! which takes milliseconds; callers cache the result per operation and size.
//!
//! Where bits must not depend on the layout, only canonical schedules are candidates. The schedule
//! is verified first, and its report decides.
//!
//! [`Selector`] selects for the calls of a group. The engine uses it at a call's first occurrence,
//! the planner before there is a group.

use std::collections::BTreeMap;
use std::sync::Arc;

use std::collections::BTreeSet;

use lockstep_config::Blame;
use lockstep_config::units::{Bytes, Seconds};

use super::{BuildError, GroupSpec, algorithms, build};
use crate::algorithm::Algorithm;
use crate::contributions::Contributions;
use crate::layout::Layout;
use crate::op::Op;
use crate::price::{Costs, price};
use crate::schedule::Schedule;
use crate::topology::{Medium, Topology};
use crate::verify::verify;

/// Request for an algorithm.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Operation.
    pub op: Op,
    /// Group of the call.
    pub group: &'a GroupSpec,
    /// Elements of the whole vector, as [`Layout::even`] counts them.
    pub count: usize,
    /// Bytes of one element.
    pub element: Bytes,
    /// Whether sums must have the canonical order.
    pub canonical: bool,
}

/// Algorithm with its schedule and modelled time.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Schedule.
    pub schedule: Schedule,
    /// Modelled time.
    pub seconds: Seconds,
}

/// Reason that a requested algorithm cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// The schedule cannot be built.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// Its sums depend on the layout, and that is not allowed.
    #[error(
        "{algorithm} over {num_ranks} ranks does not add in canonical order, which the promise of \
         equal bits needs; try {instead}"
    )]
    NotCanonical {
        /// Requested algorithm.
        algorithm: Algorithm,
        /// Number of ranks.
        num_ranks: usize,
        /// Alternative that is canonical.
        instead: Algorithm,
    },
    /// The algorithm needs memory that some ranks do not share.
    #[error("{algorithm} needs memory that the ranks do not share; try {instead}")]
    NoSharedMemory {
        /// Requested algorithm.
        algorithm: Algorithm,
        /// Alternative over messages.
        instead: Algorithm,
    },
}

impl SelectError {
    /// Blame: the user chose the algorithm.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }
}

/// Properties of a call that its schedule depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallClass {
    /// Operation.
    pub op: Op,
    /// Requested algorithm, if any.
    pub algorithm: Option<Algorithm>,
    /// Whether sums must have the canonical order.
    pub canonical: bool,
    size_class: usize,
}

impl CallClass {
    /// Calls on this many bytes, rounded to powers of two, so that all ranks and calls of similar
    /// size share a schedule.
    const fn new(op: Op, bytes: usize, canonical: bool, algorithm: Option<Algorithm>) -> Self {
        Self { op, algorithm, canonical, size_class: bytes.next_power_of_two() }
    }

    /// Request of a group.
    pub const fn request<'a>(&self, group: &'a GroupSpec) -> Request<'a> {
        let (op, count, canonical) = (self.op, self.size_class, self.canonical);
        Request { op, group, count, element: Bytes(1), canonical }
    }
}

/// Selects the schedules of a group's calls.
#[derive(Debug, Clone)]
pub struct Selector {
    group: GroupSpec,
    costs: Costs,
    /// Whether all ranks share memory.
    is_one_host: bool,
    /// Schedules without messages, by operation.
    direct: BTreeMap<Op, Vec<Arc<Schedule>>>,
}

impl Selector {
    /// Selector of a group whose ranks share memory within a domain, if the costs include shared
    /// memory.
    pub fn new(contributions: Contributions, domains: &[usize], costs: Costs) -> Self {
        let is_one_host = costs.memory.is_some() && domains.iter().all(|d| *d == domains[0]);
        let topology = if is_one_host {
            Topology::flat(domains.len(), Medium::Memory)
        } else {
            Topology::by_host(domains)
        };
        let ring = costs.links.ring_order();
        let group = GroupSpec { contributions, topology: Some(topology), ring };
        Self { group, costs, is_one_host, direct: BTreeMap::new() }
    }

    /// Replaces the costs.
    pub fn reprice(&mut self, costs: Costs) {
        self.group.ring = costs.links.ring_order();
        self.costs = costs;
        self.direct.clear();
    }

    /// Group of the calls.
    pub const fn group(&self) -> &GroupSpec {
        &self.group
    }

    /// Costs of the selection.
    pub const fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Whether all ranks share memory.
    pub const fn is_one_host(&self) -> bool {
        self.is_one_host
    }

    /// Class of calls on this many bytes: with the requested algorithm, or else with the one that is
    /// fixed for them.
    pub fn class(
        &self,
        op: Op,
        bytes: usize,
        canonical: bool,
        algorithm: Option<Algorithm>,
    ) -> CallClass {
        // Ranks that are alone exchange nothing.
        let is_alone = self.group.num_ranks() == 1;
        let fixed = || self.costs.overrides.find(op, Bytes(bytes as u64)).filter(|_| !is_alone);
        let algorithm = algorithm.or_else(|| fixed().map(|(_, algorithm)| algorithm));
        CallClass::new(op, bytes, canonical, algorithm)
    }

    /// Schedule of a class of calls.
    pub fn choose(&mut self, kind: &CallClass) -> Result<Arc<Schedule>, SelectError> {
        if self.is_one_host
            && kind.algorithm.is_none()
            && let Some(direct) = self.cheapest_direct(kind)
        {
            return Ok(direct);
        }
        let found = select(&kind.request(&self.group), &self.costs, kind.algorithm)?;
        Ok(Arc::new(found.schedule))
    }

    /// Where all ranks share memory, a message is copied into a ring buffer and out of it. Only
    /// schedules without messages are compared there, all of which are canonical.
    fn cheapest_direct(&mut self, kind: &CallClass) -> Option<Arc<Schedule>> {
        let (op, group) = (kind.op, &self.group);
        let direct = self.direct.entry(op).or_insert_with(|| {
            let built = algorithms(op).iter().filter_map(|&each| build(op, each, group).ok());
            built.filter(|schedule| !schedule.needs_messages()).map(Arc::new).collect()
        });
        let request = kind.request(group);
        let priced = direct.iter().map(|each| (seconds(&request, &self.costs, each).0, each));
        let cheapest = priced.min_by(|(one, _), (other, _)| one.total_cmp(other));
        cheapest.map(|(_, schedule)| Arc::clone(schedule))
    }
}

/// Cheapest algorithm for the request, or the `forced` one if it can be used.
pub fn select(
    request: &Request<'_>,
    costs: &Costs,
    forced: Option<Algorithm>,
) -> Result<Candidate, SelectError> {
    let Some(algorithm) = forced else { return Ok(cheapest(request, costs)) };
    let candidate = candidate(request, costs, algorithm)?;
    let instead = || cheapest(request, costs).algorithm;
    if candidate.seconds.0.is_infinite() {
        return Err(SelectError::NoSharedMemory { algorithm, instead: instead() });
    }
    if request.canonical && !is_canonical(&candidate.schedule, request.group) {
        let (num_ranks, instead) = (request.group.num_ranks(), instead());
        return Err(SelectError::NotCanonical { algorithm, num_ranks, instead });
    }
    Ok(candidate)
}

/// All algorithms that can serve the request, cheapest first, canonical or not.
pub fn candidates(request: &Request<'_>, costs: &Costs) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = algorithms(request.op)
        .iter()
        .filter_map(|&algorithm| candidate(request, costs, algorithm).ok())
        .filter(|candidate| candidate.seconds.0.is_finite())
        .collect();
    found.sort_by(|one, other| one.seconds.0.total_cmp(&other.seconds.0));
    found
}

/// Ratio to the lowest cost up to which an algorithm is worth measuring.
const CONTENDER_RATIO: f64 = 1.9;

/// Most algorithms worth measuring.
const MAX_CONTENDERS: usize = 6;

/// Algorithms whose cost is close to the lowest, and canonical ones close to the lowest canonical
/// cost; cheapest first.
pub fn contenders(request: &Request<'_>, costs: &Costs) -> Vec<Candidate> {
    let all = candidates(request, costs);
    let close = |is_allowed: &dyn Fn(&Candidate) -> bool| {
        let allowed = all.iter().enumerate().filter(|(_, each)| is_allowed(each));
        let least = allowed.clone().next().map_or(0.0, |(_, each)| each.seconds.0);
        let close = allowed.take_while(|(_, each)| each.seconds.0 <= CONTENDER_RATIO * least);
        close.map(|(index, _)| index).take(MAX_CONTENDERS).collect::<BTreeSet<_>>()
    };
    let mut chosen = close(&|_| true);
    chosen.extend(close(&|each| is_canonical(&each.schedule, request.group)));
    let all = all.into_iter().enumerate();
    all.filter(|(index, _)| chosen.contains(index)).map(|(_, each)| each).collect()
}

/// Range of lengths for which one algorithm is the cheapest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Band {
    /// First length of the range, in elements.
    pub from_count: usize,
    /// Algorithm.
    pub algorithm: Algorithm,
}

/// Selection for every power of two of elements up to `request.count`, merged into bands of equal
/// algorithms, for display.
pub fn bands(request: &Request<'_>, costs: &Costs) -> Vec<Band> {
    let counts = std::iter::successors(Some(1_usize), |count| count.checked_mul(2));
    let mut bands: Vec<Band> = Vec::new();
    for count in counts.take_while(|&count| count <= request.count) {
        let Candidate { algorithm, .. } = cheapest(&Request { count, ..*request }, costs);
        if bands.last().is_none_or(|band| band.algorithm != algorithm) {
            bands.push(Band { from_count: count, algorithm });
        }
    }
    bands
}

fn cheapest(request: &Request<'_>, costs: &Costs) -> Candidate {
    let allowed = |candidate: &Candidate| {
        !request.canonical || is_canonical(&candidate.schedule, request.group)
    };
    let found = candidates(request, costs).into_iter().find(allowed);
    found.expect("every operation has an algorithm over messages that adds in canonical order")
}

fn candidate(
    request: &Request<'_>,
    costs: &Costs,
    algorithm: Algorithm,
) -> Result<Candidate, BuildError> {
    let schedule = build(request.op, algorithm, request.group)?;
    let seconds = seconds(request, costs, &schedule);
    Ok(Candidate { algorithm, schedule, seconds })
}

fn seconds(request: &Request<'_>, costs: &Costs, schedule: &Schedule) -> Seconds {
    let layout = Layout::even(schedule, request.count);
    price(schedule, &layout, request.element, costs, request.group.topology.as_ref())
}

/// Whether the schedule adds as one worker with all leaves of the group would. Some algorithms add
/// one vector per rank: their order is canonical over ranks, which need not be canonical over
/// leaves.
fn is_canonical(schedule: &Schedule, group: &GroupSpec) -> bool {
    let is_over_leaves =
        || !schedule.op.is_sum() || schedule.contributions.tree() == group.contributions.tree();
    verify(schedule).is_ok_and(|report| report.canonical) && is_over_leaves()
}

#[cfg(test)]
mod tests {
    use lockstep_config::units::BytesPerSecond;

    use super::*;
    use crate::contributions::Contributions;
    use crate::links::Link;
    use crate::topology::Topology;
    use crate::tuning::{Trial, TuningTable};

    const NETWORK: Link = Link { latency: Seconds(20e-6), bandwidth: BytesPerSecond(1e9) };
    const OVER_TCP: Costs = Costs::plain(NETWORK, BytesPerSecond(10e9));
    const WITH_MEMORY: Costs = {
        let mut costs = OVER_TCP;
        costs.memory = Some(Link { latency: Seconds(0.2e-6), bandwidth: BytesPerSecond(10e9) });
        costs
    };

    fn request(op: Op, group: &GroupSpec, count: usize) -> Request<'_> {
        Request { op, group, count, element: Bytes(4), canonical: false }
    }

    fn chosen(op: Op, num_ranks: usize, count: usize, canonical: bool, costs: &Costs) -> Algorithm {
        let group = GroupSpec::new(num_ranks);
        let request = Request { canonical, ..request(op, &group, count) };
        select(&request, costs, None).unwrap().algorithm
    }

    #[test]
    fn short_vectors_take_few_rounds_and_long_ones_few_bytes() {
        let all_reduce = |n, count| chosen(Op::AllReduce, n, count, false, &OVER_TCP);
        assert_eq!(all_reduce(8, 10), Algorithm::Butterfly);
        assert_eq!(all_reduce(8, 10_000_000), Algorithm::Rabenseifner);
        assert_eq!(all_reduce(7, 100_000_000), Algorithm::RING);
        let broadcast = |count| chosen(Op::Broadcast { root: 3 }, 16, count, false, &OVER_TCP);
        assert_eq!(broadcast(10_000_000), Algorithm::ScatterGather);
        assert_ne!(broadcast(10), Algorithm::ScatterGather);
    }

    #[test]
    fn contenders_are_close_in_price_and_include_the_best_of_canonical_sums() {
        let group = GroupSpec::new(5);
        for count in [10, 100_000, 10_000_000] {
            let request = request(Op::AllReduce, &group, count);
            let found = contenders(&request, &OVER_TCP);
            assert_eq!(found[0], candidates(&request, &OVER_TCP)[0]);
            let canonical = Request { canonical: true, ..request };
            let best = select(&canonical, &OVER_TCP, None).unwrap();
            assert!(found.contains(&best), "{count}: {}", best.algorithm);
            assert!(found.len() <= 2 * MAX_CONTENDERS);
        }
    }

    #[test]
    fn measurements_decide_between_algorithms_of_similar_cost() {
        let group = GroupSpec::new(8);
        let request = request(Op::AllReduce, &group, 10_000_000);
        let found = contenders(&request, &OVER_TCP);
        let (op, bytes) = (Op::AllReduce, Bytes(40_000_000));
        // The second candidate was measured twice as fast as the first, the others as modelled.
        let trials = found.iter().enumerate().map(|(index, each)| {
            let factor = if index == 1 { 0.5 } else { 1.0 };
            Trial { op, algorithm: each.algorithm, bytes, factor }
        });
        let tuning = TuningTable::new(trials.collect());
        let tried = Costs { tuning, ..OVER_TCP };
        let chosen = select(&request, &tried, None).unwrap();
        assert_eq!(chosen.algorithm, found[1].algorithm);
        assert_eq!(chosen.seconds.0.to_bits(), (0.5 * found[1].seconds.0).to_bits());
    }

    #[test]
    fn shared_memory_is_used_where_it_is() {
        let all_reduce = |count| chosen(Op::AllReduce, 4, count, true, &WITH_MEMORY);
        assert_eq!(all_reduce(16), Algorithm::OneShot);
        assert_eq!(all_reduce(1_000_000), Algorithm::Direct);
        assert_eq!(chosen(Op::Barrier, 4, 0, true, &WITH_MEMORY), Algorithm::Direct);
        assert_eq!(chosen(Op::Barrier, 4, 0, true, &OVER_TCP), Algorithm::Dissemination);
    }

    #[test]
    fn across_hosts_memory_serves_inside_each_of_them() {
        let topology = Topology::by_host(&["a", "a", "a", "b", "b", "b"]);
        let group = GroupSpec { topology: Some(topology), ..GroupSpec::new(6) };
        let request = request(Op::AllReduce, &group, 10_000_000);
        let found = select(&request, &WITH_MEMORY, None).unwrap();
        assert_eq!(found.algorithm, Algorithm::Hierarchical);
        let error = select(&request, &WITH_MEMORY, Some(Algorithm::Direct)).unwrap_err();
        assert!(matches!(error, SelectError::NoSharedMemory { .. }));
    }

    #[test]
    fn while_bits_must_not_depend_on_the_layout_only_canonical_sums_are_chosen() {
        for num_ranks in 1..=9 {
            for count in [1, 1000, 1_000_000, 100_000_000] {
                let group = GroupSpec::new(num_ranks);
                for op in [Op::AllReduce, Op::ReduceScatter, Op::Reduce { root: 0 }] {
                    let request = Request { canonical: true, ..request(op, &group, count) };
                    let found = select(&request, &OVER_TCP, None).unwrap();
                    assert!(verify(&found.schedule).unwrap().canonical, "{}", found.schedule);
                }
            }
        }
    }

    #[test]
    fn an_algorithm_can_be_forced_and_a_refusal_names_another() {
        let group = GroupSpec::new(5);
        let request = request(Op::AllReduce, &group, 100);
        let forced = |canonical, algorithm| {
            let request = Request { canonical, ..request };
            select(&request, &OVER_TCP, Some(algorithm)).map(|found| found.algorithm)
        };
        assert_eq!(forced(false, Algorithm::RING), Ok(Algorithm::RING));
        let error = forced(true, Algorithm::RING).unwrap_err().to_string();
        assert_eq!(
            error,
            "ring over 5 ranks does not add in canonical order, which the promise of equal bits \
             needs; try tree"
        );
        let error = forced(false, Algorithm::Direct).unwrap_err().to_string();
        assert!(
            error.starts_with("direct needs memory that the ranks do not share; try "),
            "{error}"
        );
        let error = forced(false, Algorithm::Linear).unwrap_err().to_string();
        assert!(error.starts_with("linear is no algorithm for all-reduce; try "), "{error}");
    }

    #[test]
    fn bands_begin_at_one_element_and_change_their_answer() {
        let group = GroupSpec::new(8);
        let bands = bands(&request(Op::AllReduce, &group, 1 << 24), &OVER_TCP);
        assert_eq!(bands[0], Band { from_count: 1, algorithm: Algorithm::Butterfly });
        assert!(bands.windows(2).all(|pair| {
            pair[0].from_count < pair[1].from_count && pair[0].algorithm != pair[1].algorithm
        }));
        assert_eq!(bands.last().unwrap().algorithm, Algorithm::Rabenseifner);
    }

    #[test]
    fn whatever_links_cost_sums_are_those_over_leaves() {
        let shares: [&[usize]; 5] = [&[2, 2, 2, 1, 1], &[3, 3, 2], &[2, 2, 2, 2], &[5, 3], &[1, 7]];
        for lens in shares {
            let ends = lens.iter().scan(0, |end, len| {
                *end += len;
                Some(*end - len..*end)
            });
            let contributions = Contributions::of_leaves(&ends.collect::<Vec<_>>());
            let group = GroupSpec { contributions, ..GroupSpec::new(lens.len()) };
            for latency in [1e-7, 1e-5, 1e-3] {
                for bytes_per_second in [1e6, 1e9, 1e11] {
                    let bandwidth = BytesPerSecond(bytes_per_second);
                    let link = Link { latency: Seconds(latency), bandwidth };
                    let costs = Costs::plain(link, BytesPerSecond(1e10));
                    for (op, count) in [Op::AllReduce, Op::ReduceScatter]
                        .into_iter()
                        .flat_map(|op| [1 << 8, 1 << 14, 1 << 20].map(|count| (op, count)))
                    {
                        let request = Request { canonical: true, ..request(op, &group, count) };
                        let found = select(&request, &costs, None).unwrap().schedule;
                        assert_eq!(
                            found.contributions.tree(),
                            group.contributions.tree(),
                            "{lens:?}, {op}"
                        );
                    }
                }
            }
        }
    }
}
