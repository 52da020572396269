//! Cost of a schedule in the alpha-beta model (Hockney 1994): a message takes a latency plus its
//! bytes over the bandwidth.
//!
//! All messages that a rank sends in one round share its link, and so do all that it receives;
//! sending and receiving do not interfere. Where a *port* was measured, it bounds the bytes that a
//! rank sends and receives together while all others do so too (its core, its NIC), and links to
//! different ranks are then independent. Every message of a round after the first has an extra
//! cost. A reduction runs when its operands have arrived.
//!
//! Where ranks share cores, a schedule ends no sooner than the cores have processed all of it: then
//! the number of messages counts, not only the number of rounds.
//!
//! Shared memory of other ranks is a link too. Its latency is that of a signal, and a step that
//! reads or writes such memory pays it once for reading and once for writing, since it fetches
//! cache lines from other cores as a signal does. A message between ranks that share memory is
//! written by one and read by the other.
//!
//! Measured algorithms correct their modelled cost ([`TuningTable`]).

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

use crate::collective::overrides::AlgorithmOverrides;
use crate::instruction::{Buffer, Place, Round, Step};
use crate::layout::Layout;
use crate::links::{Link, Links};
use crate::schedule::{Schedule, StepId};
use crate::timeline::{StepTimes, simulate};
use crate::topology::Topology;
use crate::tuning::TuningTable;

/// Cost parameters of a machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// Link between ranks that do not share memory, where no single link was measured.
    pub messages: Link,
    /// Measured links between single ranks.
    pub links: Links,
    /// Measured bandwidth of a rank, sent and received together.
    pub port: Option<BytesPerSecond>,
    /// Extra cost of every message of a round after the first.
    pub per_message: Seconds,
    /// Speed-up of data that fits in a cache.
    pub cache: CacheSpeedup,
    /// Core time per message, where ranks share cores.
    pub core_contention: Option<Seconds>,
    /// Shared memory of other ranks, if accessible; messages between such ranks use it too.
    pub memory: Option<Link>,
    /// Bandwidth of a rank's own memory, read or written.
    pub local: BytesPerSecond,
    /// Corrections from measured algorithms.
    pub tuning: TuningTable,
    /// Algorithms that are fixed whatever they cost.
    pub overrides: AlgorithmOverrides,
}

impl Costs {
    /// One link for all pairs and a rank's own memory, without further measurements.
    pub const fn plain(messages: Link, local: BytesPerSecond) -> Self {
        Self {
            messages,
            links: Links::NONE,
            port: None,
            per_message: Seconds(0.0),
            cache: CacheSpeedup::NONE,
            core_contention: None,
            memory: None,
            local,
            tuning: TuningTable::NONE,
            overrides: AlgorithmOverrides::NONE,
        }
    }

    /// Rough parameters of one host, before any measurement.
    pub const fn of_one_host(shares_memory: bool) -> Self {
        const fn link(seconds: f64, bytes_per_second: f64) -> Link {
            Link { latency: Seconds(seconds), bandwidth: BytesPerSecond(bytes_per_second) }
        }
        let mut costs = Self::plain(link(5e-6, 4e9), BytesPerSecond(20e9));
        if shares_memory {
            // Less than the latency of a flag: the stores of a sweep are pipelined.
            costs.memory = Some(link(0.05e-6, 12e9));
        }
        costs
    }
}

/// Speed-up of data that fits in a cache; it applies to the first bytes of long data too.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheSpeedup {
    /// Bytes that fit in the cache.
    pub bytes: Bytes,
    /// Speed-up of sending and receiving.
    pub wire: f64,
    /// Speed-up of reading and writing.
    pub local: f64,
}

impl CacheSpeedup {
    /// No speed-up.
    pub const NONE: Self = Self { bytes: Bytes(0), wire: 1.0, local: 1.0 };

    /// Equivalent number of uncached bytes, for a speed-up of `factor`.
    fn uncached_bytes(&self, bytes: Bytes, factor: f64) -> f64 {
        let cache = bytes.min(self.bytes).0 as f64;
        cache / factor + (bytes.0 as f64 - cache)
    }
}

/// Time of the schedule, from a common start to the end of the last rank. The topology defines
/// which ranks share memory; without one all of them do, if `costs.memory` is set. A schedule that
/// deadlocks, or that needs memory which is not shared, takes infinitely long.
pub fn price(
    schedule: &Schedule,
    layout: &Layout,
    element: Bytes,
    costs: &Costs,
    topology: Option<&Topology>,
) -> Seconds {
    let num_ranks = schedule.num_ranks();
    assert!(topology.is_none_or(|all| all.covers(num_ranks)), "the topology is of other ranks");
    let domains = match (costs.memory, topology) {
        (None, _) => (0..num_ranks).collect(),
        (Some(_), None) => vec![0; num_ranks],
        (Some(_), Some(topology)) => topology.memory_domains(),
    };
    let sees = |one: usize, other: usize| domains[one] == domains[other];
    if schedule.memory_pairs().any(|(one, other)| !sees(one, other)) {
        return Seconds(f64::INFINITY);
    }
    let times = Priced { schedule, layout, element, costs, domains: &domains };
    let end = simulate(schedule, &times).map_or(f64::INFINITY, |timeline| timeline.end);
    let seconds = end.max(costs.core_contention.map_or(0.0, |each| times.busy(each.0)));
    let bytes = element * layout.count() as u64;
    Seconds(seconds * costs.tuning.factor(schedule.op, schedule.algorithm, bytes))
}

struct Priced<'a> {
    schedule: &'a Schedule,
    layout: &'a Layout,
    element: Bytes,
    costs: &'a Costs,
    /// Memory domain of each rank; ranks of equal number share memory.
    domains: &'a [usize],
}

impl Priced<'_> {
    fn bytes(&self, step: &Step) -> Bytes {
        self.element * self.layout.len(step.chunks()) as u64
    }

    /// Time for a rank to read, or to write, these bytes of every place. Of many scratch slots most
    /// were filled earlier and have left the cache, so they count twice.
    fn access(&self, rank: usize, places: &[Place], bytes: Bytes) -> Seconds {
        let (own, others): (Vec<&Place>, Vec<&Place>) =
            places.iter().partition(|place| place.rank == rank);
        let is_far = |place: &&&Place| matches!(place.buffer, Buffer::Scratch { .. });
        let num_far = if own.len() > 2 { own.iter().filter(is_far).count() } else { 0 };
        let cache = &self.costs.cache;
        let each = cache.uncached_bytes(bytes, cache.local) / self.costs.local.0;
        let local = Seconds((own.len() + num_far) as f64 * each);
        match self.costs.memory {
            Some(memory) if !others.is_empty() => {
                local + memory.latency + bytes * others.len() as u64 / memory.bandwidth
            }
            _ => local,
        }
    }
}

/// Messages of a rank in one round.
#[derive(Clone, Copy, Default)]
struct Load {
    sent: Bytes,
    received: Bytes,
    num_sends: usize,
    num_recvs: usize,
}

impl Priced<'_> {
    fn load(&self, id: StepId) -> Load {
        let round: &Round = &self.schedule.programs[id.rank][id.round];
        let mut load = Load::default();
        for step in round.iter().filter(|step| step.is_message()) {
            let bytes = self.bytes(step);
            if matches!(step, Step::Send { .. }) {
                (load.sent, load.num_sends) = (load.sent + bytes, load.num_sends + 1);
            } else {
                (load.received, load.num_recvs) = (load.received + bytes, load.num_recvs + 1);
            }
        }
        load
    }

    /// Core time of the messages and reductions of all ranks, for a given time per message. Ports
    /// and reductions were measured while all ranks shared the cores.
    fn busy(&self, each: f64) -> f64 {
        let (mut num_sends, mut moved, mut work) = (0, 0.0, 0.0);
        for (id, step) in self.schedule.steps() {
            if matches!(step, Step::Send { .. }) {
                num_sends += 1;
                moved +=
                    2.0 * self.costs.cache.uncached_bytes(self.bytes(step), self.costs.cache.wire);
            }
            work += self.work(id.rank, step);
        }
        let num_ranks = self.schedule.num_ranks() as f64;
        let port = self.costs.port.map_or(f64::INFINITY, |port| port.0);
        f64::from(num_sends) * each + (moved / port + work) / num_ranks
    }

    /// Bytes from one rank to another in the same round.
    fn pair_bytes(&self, id: StepId, to: usize) -> Bytes {
        let is_it = |step: &&Step| matches!(step, Step::Send { peer, .. } if *peer == to);
        let round: &Round = &self.schedule.programs[id.rank][id.round];
        round.iter().filter(is_it).map(|step| self.bytes(step)).sum()
    }
}

impl StepTimes for Priced<'_> {
    fn message(&self, send: StepId, recv: StepId) -> f64 {
        let (from, to) = (self.load(send), self.load(recv));
        if let Some(memory) = self.costs.memory
            && self.domains[send.rank] == self.domains[recv.rank]
        {
            return (memory.seconds(from.sent.max(to.received)) * 2.0).0;
        }
        let link = self.costs.links.between(send.rank, recv.rank).unwrap_or(&self.costs.messages);
        let num_more = from.num_sends.max(to.num_recvs) - 1;
        let more = self.costs.per_message * num_more as f64;
        let flow = match self.costs.port {
            None => from.sent.max(to.received) / link.bandwidth,
            Some(port) => {
                let busiest = (from.sent + from.received).max(to.sent + to.received);
                let cache = &self.costs.cache;
                let uncached = |bytes| cache.uncached_bytes(bytes, cache.wire);
                let own = uncached(self.pair_bytes(send, recv.rank)) / link.bandwidth.0;
                Seconds(own.max(uncached(busiest) / port.0))
            }
        };
        (link.latency + more + flow).0
    }

    fn flag(&self) -> f64 {
        self.costs.memory.map_or(f64::INFINITY, |memory| memory.latency.0)
    }

    fn work(&self, rank: usize, step: &Step) -> f64 {
        if matches!(step, Step::Send { .. } | Step::Recv { .. }) {
            return 0.0;
        }
        let bytes = self.bytes(step);
        (self.access(rank, &step.reads(rank), bytes) + self.access(rank, &step.writes(rank), bytes))
            .0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::collective::{GroupSpec, build};
    use crate::op::Op;

    const LATENCY: f64 = 10.0;
    const BYTES_PER_SECOND: f64 = 8.0;

    /// Memory access is free, so only messages count.
    const COSTS: Costs = Costs::plain(
        Link { latency: Seconds(LATENCY), bandwidth: BytesPerSecond(BYTES_PER_SECOND) },
        BytesPerSecond(f64::INFINITY),
    );

    fn seconds(op: Op, algorithm: Algorithm, num_ranks: usize, count: usize, costs: &Costs) -> f64 {
        let schedule = build(op, algorithm, &GroupSpec::new(num_ranks)).unwrap();
        price(&schedule, &Layout::even(&schedule, count), Bytes(4), costs, None).0
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-9 * expected, "{found}, not {expected}");
    }

    #[test]
    fn closed_forms_come_out_of_the_schedules() {
        let (n, count) = (8, 800);
        let vector = 4.0 * count as f64 / BYTES_PER_SECOND;
        let all_reduce = |algorithm| seconds(Op::AllReduce, algorithm, n, count, &COSTS);
        assert_close(all_reduce(Algorithm::RING), 14.0 * (LATENCY + vector / 8.0));
        assert_close(all_reduce(Algorithm::Ring { channels: 2 }), 14.0 * (LATENCY + vector / 8.0));
        assert_close(all_reduce(Algorithm::Butterfly), 3.0 * (LATENCY + vector));
        assert_close(all_reduce(Algorithm::Tree), 6.0 * (LATENCY + vector));
        assert_close(all_reduce(Algorithm::Rabenseifner), 6.0 * LATENCY + 2.0 * vector * 7.0 / 8.0);
        let linear = seconds(Op::Broadcast { root: 2 }, Algorithm::Linear, n, count, &COSTS);
        assert_close(linear, LATENCY + 7.0 * vector);
    }

    #[test]
    fn a_port_is_shared_by_all_links_of_a_rank_and_a_slow_link_is_alone() {
        let slow = |from: usize, to: usize| {
            let speed = if from + to == 1 { 1.0 } else { 100.0 };
            Link { latency: Seconds(10.0), bandwidth: BytesPerSecond(speed) }
        };
        let (links, port) = (Links::new(4, slow), Some(BytesPerSecond(8.0)));
        let costs = Costs { links, port, per_message: Seconds(3.0), ..COSTS };
        let linear =
            |costs: &Costs| seconds(Op::Broadcast { root: 0 }, Algorithm::Linear, 4, 16, costs);
        // Three messages of 64 bytes at once: the slow link takes 64 s for its own, the port 24 s
        // for all.
        assert_close(linear(&costs), 10.0 + 2.0 * 3.0 + 64.0);
        let even = Costs { links: Links::NONE, ..costs };
        assert_close(linear(&even), 10.0 + 2.0 * 3.0 + 24.0);
    }

    #[test]
    fn where_ranks_share_cores_the_messages_of_all_of_them_count() {
        let crowded = Costs { core_contention: Some(Seconds(9.0)), ..COSTS };
        let empty = |algorithm| seconds(Op::AllReduce, algorithm, 4, 0, &crowded);
        // Three messages up and three down in four rounds; two from each rank in two rounds.
        assert_close(empty(Algorithm::Tree), 6.0 * 9.0);
        assert_close(empty(Algorithm::Butterfly), 8.0 * 9.0);
        let uncached = Costs { core_contention: Some(Seconds(1.0)), ..COSTS };
        let found = seconds(Op::AllReduce, Algorithm::Tree, 4, 0, &uncached);
        assert_close(found, 4.0 * LATENCY);
    }

    #[test]
    fn memory_is_read_and_written_at_its_own_speed() {
        let memory = Link { latency: Seconds(1.0), bandwidth: BytesPerSecond(4.0) };
        let costs = Costs { memory: Some(memory), local: BytesPerSecond(400.0), ..COSTS };
        let found = seconds(Op::AllReduce, Algorithm::Direct, 2, 200, &costs);
        // Two synchronizations; then each rank reads and writes half of the other's vector and of
        // its own.
        let (flags, there, here) = (2.0, 2.0 * (1.0 + 400.0 / 4.0), 2.0 * 400.0 / 400.0);
        assert_close(found, flags + there + here);
    }

    #[test]
    fn memory_is_shared_only_inside_a_host() {
        let memory = Link { latency: Seconds(1.0), bandwidth: BytesPerSecond(f64::INFINITY) };
        let costs = Costs { memory: Some(memory), ..COSTS };
        let hosts = Topology::by_host(&["a", "a", "b", "b"]);
        let seconds = |algorithm| {
            let schedule = build(Op::Barrier, algorithm, &GroupSpec::new(4)).unwrap();
            let layout = Layout::even(&schedule, 0);
            price(&schedule, &layout, Bytes(4), &costs, Some(&hosts)).0
        };
        // The previous rank is on the same host for half of the ranks, the one before it never.
        assert_close(seconds(Algorithm::Dissemination), 2.0 * LATENCY);
        assert!(seconds(Algorithm::Direct).is_infinite());
    }

    #[test]
    fn impossible_schedules_take_infinitely_long() {
        let found = seconds(Op::AllReduce, Algorithm::Direct, 2, 1, &COSTS);
        assert!(found.is_infinite());
        let mut stuck = build(Op::Barrier, Algorithm::Dissemination, &GroupSpec::new(2)).unwrap();
        stuck.programs[0].clear();
        let layout = Layout::even(&stuck, 0);
        assert!(price(&stuck, &layout, Bytes(4), &COSTS, None).0.is_infinite());
    }
}
