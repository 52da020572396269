//! Schedules compiled for simulation: every send matched with its receive, once.
//!
//! A simulation then only advances times.

use lockstep_config::units::Bytes;
use lockstep_schedule::{Layout, Schedule, Step};
use std::collections::{BTreeMap, VecDeque};

/// A schedule with byte counts, ready for any number of simulations.
#[derive(Debug, Clone)]
pub struct CompiledSchedule {
    /// By rank and round: the range of its messages in `message_indices`.
    pub(super) rounds: Vec<Vec<(u32, u32)>>,
    pub(super) message_indices: Vec<u32>,
    pub(super) messages: Vec<Message>,
}

/// Round and size of the sends, or receives, between two ranks, in order.
type Posted = VecDeque<(usize, Bytes)>;

/// A send matched with its receive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message {
    pub(super) source: u32,
    pub(super) target: u32,
    pub(super) bytes: Bytes,
    /// Bytes that the source sends to the target in the same round: they share the pair's link.
    pub(super) pair_bytes: Bytes,
    /// Bytes that the busier of the two ends sends (or receives) in the same round: they share a
    /// port.
    pub(super) port_bytes: Bytes,
}

impl CompiledSchedule {
    /// Compiles a schedule with the chunk sizes of `layout`.
    ///
    /// # Panics
    /// If ranks access each other's memory, or a receive has no send.
    pub fn new(schedule: &Schedule, layout: &Layout, element: Bytes) -> Self {
        assert!(!schedule.needs_memory(), "only schedules of messages can be simulated");
        let bytes_of = |step: &Step| element * layout.len(step.chunks()) as u64;
        let port_bytes = |rank: usize, round: usize, sends: bool| {
            let steps = schedule.programs[rank][round].iter().filter(|step| step.is_message());
            let same = steps.filter(|step| matches!(step, Step::Send { .. }) == sends);
            same.map(bytes_of).sum::<Bytes>()
        };
        let mut posted: BTreeMap<(usize, usize), [Posted; 2]> = BTreeMap::new();
        for (id, step) in schedule.steps() {
            let (channel, is_recv) = match *step {
                Step::Send { peer, .. } => ((id.rank, peer), 0),
                Step::Recv { peer, .. } | Step::RecvReduce { peer, .. } => ((peer, id.rank), 1),
                _ => continue,
            };
            posted.entry(channel).or_default()[is_recv].push_back((id.round, bytes_of(step)));
        }
        let num_rounds = |rank: usize| schedule.programs[rank].len();
        let mut by_round: Vec<Vec<Vec<u32>>> =
            (0..schedule.num_ranks()).map(|rank| vec![Vec::new(); num_rounds(rank)]).collect();
        let mut messages = Vec::new();
        for ((source, target), [sends, recvs]) in posted {
            assert_eq!(sends.len(), recvs.len(), "every send has a receive");
            for ((sent_in, bytes), (received_in, _)) in sends.into_iter().zip(recvs) {
                let number = messages.len() as u32;
                by_round[source][sent_in].push(number);
                by_round[target][received_in].push(number);
                let port_bytes =
                    port_bytes(source, sent_in, true).max(port_bytes(target, received_in, false));
                let steps = schedule.programs[source][sent_in].iter();
                let to_target =
                    steps.filter(|step| matches!(step, Step::Send { peer, .. } if *peer == target));
                let pair_bytes = to_target.map(bytes_of).sum();
                let (source, target) = (source as u32, target as u32);
                messages.push(Message { source, target, bytes, pair_bytes, port_bytes });
            }
        }
        let mut message_indices = Vec::new();
        let mut flat = |numbers: Vec<u32>| {
            let start = message_indices.len() as u32;
            message_indices.extend(numbers);
            (start, message_indices.len() as u32)
        };
        let rounds = by_round.into_iter().map(|rank| rank.into_iter().map(&mut flat).collect());
        let rounds = rounds.collect();
        Self { rounds, message_indices, messages }
    }

    /// Number of ranks.
    pub fn num_ranks(&self) -> usize {
        self.rounds.len()
    }

    /// Bytes that each rank sends.
    pub fn sent_bytes(&self) -> Vec<Bytes> {
        let mut sent = vec![Bytes(0); self.num_ranks()];
        for message in &self.messages {
            sent[message.source as usize] += message.bytes;
        }
        sent
    }
}
