//! A collective, event by event: a message is on its way from the moment that both its ends are
//! posted, and a rank's next round begins when all messages of this one are through.
//!
//! A schedule is compiled once, so that who meets whom is known and a play only follows times.
//! What ranks do with their own memory takes no time here.

use super::queue::Queue;
use super::{Fabric, Shared};
use lockstep_config::units::Bytes;
use lockstep_schedule::{Layout, Schedule, Step};
use std::collections::{BTreeMap, VecDeque};

/// A schedule with lengths, ready to be played many times.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// By rank and round, its messages: from where in `of_rounds`, to where.
    rounds: Vec<Vec<(u32, u32)>>,
    of_rounds: Vec<u32>,
    pub(super) messages: Vec<Message>,
}

/// The rounds and lengths of a channel's sends, or of its receives, in order.
type Posted = VecDeque<(usize, Bytes)>;

/// A send that met its receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) source: u32,
    pub(super) target: u32,
    pub(super) bytes: Bytes,
    /// What the busier of the two ends moves that way in the same round: they share a port.
    load: Bytes,
}

/// When it was over.
#[derive(Debug, Clone, PartialEq)]
pub struct Played {
    /// By rank; infinite for a rank that waits for ever.
    pub ends: Vec<f64>,
    /// When the last rank was done.
    pub end: f64,
    /// How many events that took.
    pub num_events: u64,
}

impl Compiled {
    /// A schedule of messages with the lengths of its chunks.
    ///
    /// # Panics
    /// Where ranks look into each other's memory, or wait for messages that nobody sends.
    pub fn new(schedule: &Schedule, layout: &Layout, element: Bytes) -> Self {
        assert!(!schedule.needs_memory(), "only messages can be simulated");
        let bytes = |step: &Step| element * layout.len(step.chunks()) as u64;
        let load = |rank: usize, round: usize, sends: bool| {
            let steps = schedule.programs[rank][round].iter().filter(|step| step.is_message());
            let same = steps.filter(|step| matches!(step, Step::Send { .. }) == sends);
            same.map(bytes).sum::<Bytes>()
        };
        let mut waiting: BTreeMap<(usize, usize), [Posted; 2]> = BTreeMap::new();
        for (id, step) in schedule.steps() {
            let (channel, is_recv) = match *step {
                Step::Send { peer, .. } => ((id.rank, peer), 0),
                Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => ((peer, id.rank), 1),
                _ => continue,
            };
            waiting.entry(channel).or_default()[is_recv].push_back((id.round, bytes(step)));
        }
        let num_rounds = |rank: usize| schedule.programs[rank].len();
        let mut by_round: Vec<Vec<Vec<u32>>> =
            (0..schedule.num_ranks()).map(|rank| vec![Vec::new(); num_rounds(rank)]).collect();
        let mut messages = Vec::new();
        for ((source, target), [sends, recvs]) in waiting {
            assert_eq!(sends.len(), recvs.len(), "every send meets a receive");
            for ((sent_in, bytes), (received_in, _)) in sends.into_iter().zip(recvs) {
                let number = messages.len() as u32;
                by_round[source][sent_in].push(number);
                by_round[target][received_in].push(number);
                let load = load(source, sent_in, true).max(load(target, received_in, false));
                let (source, target) = (source as u32, target as u32);
                messages.push(Message { source, target, bytes, load });
            }
        }
        let mut of_rounds = Vec::new();
        let mut flat = |numbers: Vec<u32>| {
            let start = of_rounds.len() as u32;
            of_rounds.extend(numbers);
            (start, of_rounds.len() as u32)
        };
        let rounds = by_round.into_iter().map(|rank| rank.into_iter().map(&mut flat).collect());
        let rounds = rounds.collect();
        Self { rounds, of_rounds, messages }
    }

    /// How many ranks take part.
    pub fn num_ranks(&self) -> usize {
        self.rounds.len()
    }

    /// What each rank sends.
    pub fn sent_bytes(&self) -> Vec<Bytes> {
        let mut sent = vec![Bytes(0); self.num_ranks()];
        for message in &self.messages {
            sent[message.source as usize] += message.bytes;
        }
        sent
    }
}

/// Plays a collective whose ranks come at `starts`; one that comes at infinity never comes.
pub fn play(compiled: &Compiled, fabric: Fabric<'_>, starts: &[f64]) -> Played {
    play_until(compiled, fabric, starts, &[])
}

/// The same where ranks fail: rank i at the time `deaths[i]`, or never where there is none. What a
/// dead rank has not sent or received by then does not arrive, and whoever needs it waits for ever.
pub fn play_until(
    compiled: &Compiled,
    fabric: Fabric<'_>,
    starts: &[f64],
    deaths: &[f64],
) -> Played {
    assert_eq!(starts.len(), compiled.num_ranks(), "a start for every rank");
    let mut player = Player {
        compiled,
        queue: Queue::default(),
        round: vec![0; starts.len()],
        open: vec![0; starts.len()],
        is_posted: vec![false; compiled.messages.len()],
        ends: vec![f64::INFINITY; starts.len()],
        deaths: Vec::new(),
    };
    let num_messages = compiled.messages.len() as u32;
    // Time runs from the first arrival, so that a collective takes the same digits at any hour.
    let first = starts.iter().copied().fold(f64::INFINITY, f64::min);
    player.deaths = deaths.iter().map(|death| death - first).collect();
    for (rank, start) in starts.iter().enumerate().filter(|(_, start)| start.is_finite()) {
        player.queue.push(*start - first, num_messages + rank as u32);
    }
    let num_events = match fabric {
        Fabric::Shared(shared) => player.run_shared(shared),
        _ => player.run(|message| seconds(fabric, message)),
    };
    let ends: Vec<f64> = player.ends.iter().map(|end| first + end).collect();
    let end = ends.iter().copied().fold(0.0, f64::max);
    Played { ends, end, num_events }
}

/// How long a message takes, where nothing but a port is shared.
fn seconds(fabric: Fabric<'_>, message: &Message) -> f64 {
    let link = match fabric {
        Fabric::Even(link) => link,
        Fabric::Pairs(links) => *links
            .between(message.source as usize, message.target as usize)
            .expect("there is a link between any two ranks"),
        Fabric::Shared(_) => unreachable!("shared links have no times of their own"),
    };
    link.seconds(message.load).0
}

pub(super) struct Player<'a> {
    pub(super) compiled: &'a Compiled,
    pub(super) queue: Queue,
    /// The round that each rank is in.
    round: Vec<usize>,
    /// Messages of that round that are not through.
    open: Vec<u32>,
    /// Messages of which one end is posted.
    is_posted: Vec<bool>,
    ends: Vec<f64>,
    /// When ranks fail, if they do.
    deaths: Vec<f64>,
}

impl Player<'_> {
    /// Whether a rank has failed by now.
    fn is_dead(&self, rank: usize, now: f64) -> bool {
        self.deaths.get(rank).is_some_and(|death| now > *death)
    }

    /// Messages do not disturb each other.
    fn run(&mut self, seconds: impl Fn(&Message) -> f64) -> u64 {
        let compiled = self.compiled;
        let mut num_events = 0;
        let mut flying = Vec::new();
        while let Some((now, what)) = self.queue.pop() {
            num_events += 1;
            match compiled.messages.get(what as usize) {
                Some(message) => self.arrive(message, now, &mut flying),
                None => self.post(what as usize - compiled.messages.len(), now, &mut flying),
            }
            for number in flying.drain(..) {
                self.queue.push(now + seconds(&compiled.messages[number as usize]), number);
            }
        }
        num_events
    }

    /// A message is through for both of its ends.
    pub(super) fn arrive(&mut self, message: &Message, now: f64, flying: &mut Vec<u32>) {
        let ends = [message.source as usize, message.target as usize];
        if ends.iter().any(|rank| self.is_dead(*rank, now)) {
            return;
        }
        for rank in ends {
            self.open[rank] -= 1;
            if self.open[rank] == 0 {
                self.round[rank] += 1;
                self.post(rank, now, flying);
            }
        }
    }

    /// A rank posts its next round; messages whose other end was posted fly from now on.
    pub(super) fn post(&mut self, rank: usize, now: f64, flying: &mut Vec<u32>) {
        let compiled = self.compiled;
        if self.is_dead(rank, now) {
            return;
        }
        loop {
            let Some(&(start, end)) = compiled.rounds[rank].get(self.round[rank]) else {
                self.ends[rank] = now;
                return;
            };
            if start == end {
                self.round[rank] += 1;
                continue;
            }
            self.open[rank] = end - start;
            for &number in &compiled.of_rounds[start as usize..end as usize] {
                if std::mem::replace(&mut self.is_posted[number as usize], true) {
                    flying.push(number);
                }
            }
            return;
        }
    }
}

impl Player<'_> {
    fn run_shared(&mut self, shared: &Shared) -> u64 {
        super::shared::run(self, shared)
    }
}
