//! What a schedule costs, by the alpha-beta model: a message takes a latency plus its bytes over
//! the bandwidth.
//!
//! All that a rank sends in one round shares its link, and so does all that it receives; sending
//! and receiving do not disturb each other. Where a *port* was measured, that is what a rank sends
//! and receives together at most while all others do so too (its core, its network card), and links
//! to different ranks are then links of their own. Every message of a round after the first costs
//! its rank some time besides. A sum is added up when what it needs has come.
//!
//! Where ranks share cores, a schedule is done no sooner than the cores are done with all of it,
//! whoever's turn it is: then the number of messages counts, and not only that of rounds.
//!
//! Memory of other ranks is a link too. Its latency is that of a signal, and a step that reads or
//! writes such memory pays it once for reading and once for writing, since it fetches lines from
//! other cores as a signal does. A message between ranks that share memory is written by one and
//! read by the other.
//!
//! Where algorithms were tried out, prices are corrected by what was found ([`Rehearsal`]).

use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};

use crate::layout::Layout;
use crate::links::{Link, Links};
use crate::rehearsal::Rehearsal;
use crate::schedule::{Schedule, StepId};
use crate::step::{Buffer, Place, Round, Step};
use crate::timeline::{Pace, play};
use crate::topology::Topology;

/// What a machine costs.
#[derive(Debug, Clone, PartialEq)]
pub struct Costs {
    /// Messages between ranks that do not share memory, where nothing better is known.
    pub messages: Link,
    /// The links between single ranks, as far as they were measured.
    pub links: Links,
    /// What a rank sends and receives together at most, where that was measured.
    pub port: Option<BytesPerSecond>,
    /// What every message of a round after the first one costs.
    pub per_message: Seconds,
    /// How much faster short things are.
    pub near: Near,
    /// Where ranks share cores: what every message of any of them keeps the cores from the others.
    pub crowd: Option<Seconds>,
    /// Other ranks' memory, where it can be seen; messages between such ranks go through it too.
    pub memory: Option<Link>,
    /// A rank's own memory, read or written.
    pub local: BytesPerSecond,
    /// How far prices were from the truth, where that was tried.
    pub rehearsal: Rehearsal,
}

impl Costs {
    /// Messages by one link alike between all, and a rank's own memory: nothing else is known.
    pub const fn plain(messages: Link, local: BytesPerSecond) -> Self {
        Self {
            messages,
            links: Links::NONE,
            port: None,
            per_message: Seconds(0.0),
            near: Near::NONE,
            crowd: None,
            memory: None,
            local,
            rehearsal: Rehearsal::NONE,
        }
    }

    /// Roughly one host, as long as nobody has measured it.
    pub const fn of_one_host(shares_memory: bool) -> Self {
        const fn link(seconds: f64, bytes_per_second: f64) -> Link {
            Link { latency: Seconds(seconds), bandwidth: BytesPerSecond(bytes_per_second) }
        }
        let mut costs = Self::plain(link(5e-6, 4e9), BytesPerSecond(20e9));
        if shares_memory {
            // Less than a flag takes: the stores of a sweep do not wait for each other.
            costs.memory = Some(link(0.05e-6, 12e9));
        }
        costs
    }
}

/// What is short enough lies in a cache, where it is sent and added faster: so does the beginning
/// of what is long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Near {
    /// How short.
    pub bytes: Bytes,
    /// How many times as fast it is sent and received.
    pub wire: f64,
    /// How many times as fast it is read and written.
    pub local: f64,
}

impl Near {
    /// Short or long, all is equally fast.
    pub const NONE: Self = Self { bytes: Bytes(0), wire: 1.0, local: 1.0 };

    /// The bytes that would take as long if nothing were near, `factor` being how much that helps.
    fn as_far(&self, bytes: Bytes, factor: f64) -> f64 {
        let near = bytes.min(self.bytes).0 as f64;
        near / factor + (bytes.0 as f64 - near)
    }
}

/// How long the schedule takes, from the first rank's start to the last one's end, when all start
/// together. The topology says who shares memory; without one it is everybody, if anybody. A
/// schedule that never ends, or that needs memory which cannot be seen, takes for ever.
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
    let pace = Priced { schedule, layout, element, costs, domains: &domains };
    let end = play(schedule, &pace).map_or(f64::INFINITY, |timeline| timeline.end);
    let seconds = end.max(costs.crowd.map_or(0.0, |each| pace.busy(each.0)));
    let bytes = element * layout.count() as u64;
    Seconds(seconds * costs.rehearsal.factor(schedule.op, schedule.algorithm, bytes))
}

struct Priced<'a> {
    schedule: &'a Schedule,
    layout: &'a Layout,
    element: Bytes,
    costs: &'a Costs,
    /// Ranks with the same number see each other's memory.
    domains: &'a [usize],
}

impl Priced<'_> {
    fn bytes(&self, step: &Step) -> Bytes {
        self.element * self.layout.len(step.chunks()) as u64
    }

    /// What it takes a rank to read, or to write, so much of every place. Of many pieces of
    /// working memory most were filled some time ago and are no longer near, so they count twice.
    fn access(&self, rank: usize, places: &[Place], bytes: Bytes) -> Seconds {
        let (own, others): (Vec<&Place>, Vec<&Place>) =
            places.iter().partition(|place| place.rank == rank);
        let is_far = |place: &&&Place| matches!(place.buffer, Buffer::Scratch { .. });
        let num_far = if own.len() > 2 { own.iter().filter(is_far).count() } else { 0 };
        let near = &self.costs.near;
        let each = near.as_far(bytes, near.local) / self.costs.local.0;
        let local = Seconds((own.len() + num_far) as f64 * each);
        match self.costs.memory {
            Some(memory) if !others.is_empty() => {
                local + memory.latency + bytes * others.len() as u64 / memory.bandwidth
            }
            _ => local,
        }
    }
}

/// What a rank does with messages in one round.
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

    /// How long the cores are busy with the messages and sums of all ranks, given what a message
    /// takes. Ports and sums were measured while all ranks shared the cores.
    fn busy(&self, each: f64) -> f64 {
        let (mut num_sends, mut moved, mut work) = (0, 0.0, 0.0);
        for (id, step) in self.schedule.steps() {
            if matches!(step, Step::Send { .. }) {
                num_sends += 1;
                moved += 2.0 * self.costs.near.as_far(self.bytes(step), self.costs.near.wire);
            }
            work += self.work(id.rank, step);
        }
        let num_ranks = self.schedule.num_ranks() as f64;
        let port = self.costs.port.map_or(f64::INFINITY, |port| port.0);
        f64::from(num_sends) * each + (moved / port + work) / num_ranks
    }

    /// What goes from one rank to another in the same round.
    fn pair_bytes(&self, id: StepId, to: usize) -> Bytes {
        let is_it = |step: &&Step| matches!(step, Step::Send { peer, .. } if *peer == to);
        let round: &Round = &self.schedule.programs[id.rank][id.round];
        round.iter().filter(is_it).map(|step| self.bytes(step)).sum()
    }
}

impl Pace for Priced<'_> {
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
                let near = &self.costs.near;
                let far = |bytes| near.as_far(bytes, near.wire);
                let own = far(self.pair_bytes(send, recv.rank)) / link.bandwidth.0;
                Seconds(own.max(far(busiest) / port.0))
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
    use crate::collective::{Team, build};
    use crate::op::Op;

    const LATENCY: f64 = 10.0;
    const BYTES_PER_SECOND: f64 = 8.0;

    /// Memory is free, so that only messages count.
    const COSTS: Costs = Costs::plain(
        Link { latency: Seconds(LATENCY), bandwidth: BytesPerSecond(BYTES_PER_SECOND) },
        BytesPerSecond(f64::INFINITY),
    );

    fn seconds(op: Op, algorithm: Algorithm, num_ranks: usize, count: usize, costs: &Costs) -> f64 {
        let schedule = build(op, algorithm, &Team::new(num_ranks)).unwrap();
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
        // Three messages of 64 bytes at once: the slow link takes 64 s for its own, and the port
        // 24 s for all.
        assert_close(linear(&costs), 10.0 + 2.0 * 3.0 + 64.0);
        let even = Costs { links: Links::NONE, ..costs };
        assert_close(linear(&even), 10.0 + 2.0 * 3.0 + 24.0);
    }

    #[test]
    fn where_ranks_share_cores_the_messages_of_all_of_them_count() {
        let crowded = Costs { crowd: Some(Seconds(9.0)), ..COSTS };
        let empty = |algorithm| seconds(Op::AllReduce, algorithm, 4, 0, &crowded);
        // Three messages up and three down in four rounds; two from each rank in two rounds.
        assert_close(empty(Algorithm::Tree), 6.0 * 9.0);
        assert_close(empty(Algorithm::Butterfly), 8.0 * 9.0);
        let far = Costs { crowd: Some(Seconds(1.0)), ..COSTS };
        let found = seconds(Op::AllReduce, Algorithm::Tree, 4, 0, &far);
        assert_close(found, 4.0 * LATENCY);
    }

    #[test]
    fn memory_is_read_and_written_at_its_own_speed() {
        let memory = Link { latency: Seconds(1.0), bandwidth: BytesPerSecond(4.0) };
        let costs = Costs { memory: Some(memory), local: BytesPerSecond(400.0), ..COSTS };
        let found = seconds(Op::AllReduce, Algorithm::Direct, 2, 200, &costs);
        // Two synchronisations; then each rank reads and writes half of the other's vector and of
        // its own.
        let (flags, there, here) = (2.0, 2.0 * (1.0 + 400.0 / 4.0), 2.0 * 400.0 / 400.0);
        assert_close(found, flags + there + here);
    }

    #[test]
    fn memory_is_near_only_inside_a_host() {
        let memory = Link { latency: Seconds(1.0), bandwidth: BytesPerSecond(f64::INFINITY) };
        let costs = Costs { memory: Some(memory), ..COSTS };
        let hosts = Topology::by_host(&["a", "a", "b", "b"]);
        let seconds = |algorithm| {
            let schedule = build(Op::Barrier, algorithm, &Team::new(4)).unwrap();
            let layout = Layout::even(&schedule, 0);
            price(&schedule, &layout, Bytes(4), &costs, Some(&hosts)).0
        };
        // The rank before is on the same host for half of the ranks; two ranks before it never is.
        assert_close(seconds(Algorithm::Dissemination), 2.0 * LATENCY);
        assert!(seconds(Algorithm::Direct).is_infinite());
    }

    #[test]
    fn what_cannot_be_done_takes_for_ever() {
        let found = seconds(Op::AllReduce, Algorithm::Direct, 2, 1, &COSTS);
        assert!(found.is_infinite());
        let mut stuck = build(Op::Barrier, Algorithm::Dissemination, &Team::new(2)).unwrap();
        stuck.programs[0].clear();
        let layout = Layout::even(&stuck, 0);
        assert!(price(&stuck, &layout, Bytes(4), &COSTS, None).0.is_infinite());
    }
}
