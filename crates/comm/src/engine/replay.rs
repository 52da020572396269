//! Replay of calls that repeat on the same buffers.
//!
//! A training step makes the same calls on the same buffers as the step before. Resolving every
//! piece of a schedule takes longer than the flags and the sum of a short vector. So the engine
//! records a call as a list of signals, waits and memory windows, and replays the record when the
//! same schedule is called on the same buffers. The other ranks publish their descriptors as in
//! every call; where one of them differs from the record, the replay diverges and the engine
//! continues from that round without it.
//!
//! Only schedules that touch shared memory alone, use no scratch, and in which every rank waits for
//! every other are recorded.

use std::ops::Range;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use super::{Call, Engine};
use crate::call_buffers::CallBuffers;
use crate::element::Reduction;
use crate::endpoint::Endpoint;
use crate::error::Interruption;
use crate::flags::CallDescriptor;
use crate::kernel::{self, Job};
use crate::membership::Membership;
use crate::prepared_schedule::{Area, Piece, PreparedSchedule};
use crate::segment_window::target;
use crate::transport::shared::SharedWorld;

/// Records per schedule: a model has several buckets of one size.
const MAX_RECORDS: usize = 16;

/// Misses after which the oldest record of a full cache is replaced.
const MAX_MISSES: u32 = 64;

/// Most windows of a recorded reduction.
const MAX_WINDOWS: usize = 8;

/// Cache lines of remote memory that are prefetched, over all windows: as many as arrive while a
/// flag does. Sixteen were slower: the flag had to wait for them.
const LINES_AHEAD: usize = 8;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Replay records of one prepared schedule.
#[derive(Default)]
pub(crate) struct ReplayCache {
    records: Vec<ReplayRecord>,
    num_misses: u32,
}

/// Record of one call.
#[derive(Default)]
pub(crate) struct ReplayRecord {
    /// The caller's buffers.
    input: Extent,
    output: Extent,
    in_place: bool,
    /// Descriptor of this rank, and those of all ranks, by group rank.
    descriptor: CallDescriptor,
    descriptors: Vec<CallDescriptor>,
    peers: Vec<Rank>,
    steps: Vec<Step>,
    /// Windows of all reductions.
    windows: Vec<Window>,
}

/// Offset and length of a buffer in the rank's segment.
type Extent = (usize, usize);

/// A range of a rank's segment.
#[derive(Clone, Copy)]
struct Window {
    rank: Rank,
    start: usize,
    bytes: usize,
}

enum Step {
    /// Signal number, and whether another signal follows in this call.
    Signal(u32, bool),
    /// Prefetch of memory that will be written soon.
    Fetch(Window),
    Wait {
        round: usize,
        group_rank: usize,
        peer: Rank,
        num_signals: u32,
        /// Whether the peer's descriptor is compared with the record.
        reads_descriptor: bool,
    },
    Copy(Window, Window),
    Reduce {
        round: usize,
        index: usize,
        /// Ranges of the record's windows.
        into: Range<usize>,
        sources: Range<usize>,
    },
}

/// Whether calls of a schedule can be replayed. The offset of scratch changes from call to call.
fn is_replayable(prepared: &PreparedSchedule) -> bool {
    let is_scratch = |piece: &Piece| piece.area == Area::Scratch;
    let is_wide = |pieces: &[Piece]| pieces.len() > MAX_WINDOWS;
    prepared.facts.is_closed
        && prepared.rounds.iter().all(|round| {
            let copies = round.copies.iter().flat_map(|(into, from)| [into, from]);
            let sums = round.reductions.iter().flat_map(|sum| sum.into.iter().chain(&sum.sources));
            let mut reductions = round.reductions.iter();
            round.sends.is_empty()
                && round.recvs.is_empty()
                && round.num_signals <= 1
                && !reductions.any(|reduce| is_wide(&reduce.into) || is_wide(&reduce.sources))
                && !copies.chain(sums).any(is_scratch)
        })
}

/// Point at which a replay stops and the engine continues without the record.
#[derive(Default)]
pub(super) struct Divergence {
    pub(super) round: usize,
    pub(super) num_signals: u32,
    /// Interruption that stopped the replay, if any.
    pub(super) why: Option<Interruption>,
}

impl Engine {
    /// Replays the call; an error says where the engine has to continue.
    #[inline]
    pub(super) fn replay_call(
        &mut self,
        endpoint: &Endpoint,
        shared: &SharedWorld,
        membership: &Membership,
        call: &Call<'_>,
        replays: &ReplayCache,
    ) -> Result<(), Divergence> {
        let (Some(found), false) = (call.replay, self.was_open) else {
            call.begin();
            return Err(Divergence::default());
        };
        replays.get(found).replay(endpoint, shared, call, membership.id, self.call)?;
        self.moved = call.prepared.traffic;
        Ok(())
    }
}

impl ReplayCache {
    /// Index of the record for these buffers, if there is one.
    #[inline]
    pub(crate) fn find(&self, buffers: &CallBuffers<'_>) -> Option<usize> {
        self.records.iter().position(|record| record.matches_buffers(buffers))
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> &ReplayRecord {
        &self.records[number]
    }

    /// Records a successful call if it can be replayed. An older record for the same buffers is
    /// overwritten, so that calls which keep diverging allocate nothing.
    pub(super) fn record(
        &mut self,
        call: &Call<'_>,
        membership: &Membership,
        buffers: &CallBuffers<'_>,
        descriptor: &CallDescriptor,
        descriptors: &[(u64, CallDescriptor)],
    ) {
        let prepared = call.prepared;
        let is_divided_later = call.reduction == Reduction::Mean && !prepared.facts.has_whole_sums;
        // A group of one resolves nothing remote.
        if is_divided_later || membership.ranks.len() == 1 || !is_replayable(prepared) {
            return;
        }
        let input = extent(buffers.input_offset, buffers.input.len());
        let output = extent(buffers.output_offset, buffers.output.len());
        let (Some(input), Some(output)) = (input, output) else { return };
        let is_same = |old: &ReplayRecord| old.input == input && old.output == output;
        let index = match self.records.iter().position(is_same) {
            Some(index) => index,
            None if self.records.len() < MAX_RECORDS => {
                self.records.push(ReplayRecord::default());
                self.records.len() - 1
            }
            None => {
                self.num_misses += 1;
                if !self.num_misses.is_multiple_of(MAX_MISSES) {
                    return;
                }
                self.records.rotate_left(1);
                MAX_RECORDS - 1
            }
        };
        let record = &mut self.records[index];
        (record.input, record.output, record.in_place) = (input, output, buffers.in_place);
        record.fill(prepared, membership, descriptor, descriptors);
    }
}

impl ReplayRecord {
    #[inline]
    fn matches_buffers(&self, buffers: &CallBuffers<'_>) -> bool {
        extent(buffers.output_offset, buffers.output.len()) == Some(self.output)
            && extent(buffers.input_offset, buffers.input.len()) == Some(self.input)
            && buffers.in_place == self.in_place
    }

    /// Records the descriptors and steps of a call.
    fn fill(
        &mut self,
        prepared: &PreparedSchedule,
        membership: &Membership,
        descriptor: &CallDescriptor,
        descriptors: &[(u64, CallDescriptor)],
    ) {
        self.descriptor = *descriptor;
        self.descriptors.clear();
        self.descriptors.extend(descriptors.iter().map(|(_, descriptor)| *descriptor));
        self.descriptors[membership.group_rank] = *descriptor;
        let own = membership.ranks[membership.group_rank];
        self.peers.clear();
        self.peers.extend(membership.ranks.iter().filter(|rank| **rank != own));
        self.steps.clear();
        self.windows.clear();
        for round in 0..prepared.rounds.len() {
            self.add_round(prepared, membership, round);
        }
    }

    /// Records the steps of a round.
    fn add_round(&mut self, prepared: &PreparedSchedule, membership: &Membership, round: usize) {
        let steps = &prepared.rounds[round];
        let num_before: u32 = prepared.rounds[..round].iter().map(|round| round.num_signals).sum();
        if steps.num_signals == 1 {
            let number = num_before + 1;
            self.steps.push(Step::Signal(number, number < prepared.num_signals));
        }
        // After the signal, which must not be delayed.
        if !steps.waits.is_empty() {
            self.fetch_ahead(prepared, membership, round + 1);
        }
        for &(group_rank, num_signals) in &steps.waits {
            let is_known =
                |step: &Step| matches!(step, Step::Wait { group_rank: m, .. } if *m == group_rank);
            let reads_descriptor = !self.steps.iter().any(is_known);
            let peer = membership.ranks[group_rank];
            self.steps.push(Step::Wait { round, group_rank, peer, num_signals, reads_descriptor });
        }
        for (into, from) in &steps.copies {
            self.steps
                .push(Step::Copy(self.window(membership, into), self.window(membership, from)));
        }
        for (index, reduce) in steps.reductions.iter().enumerate() {
            let into = self.add_windows(membership, &reduce.into);
            let sources = self.add_windows(membership, &reduce.sources);
            self.steps.push(Step::Reduce { round, index, into, sources });
        }
    }

    fn add_windows(&mut self, membership: &Membership, pieces: &[Piece]) -> Range<usize> {
        let start = self.windows.len();
        for piece in pieces {
            self.windows.push(self.window(membership, piece));
        }
        start..self.windows.len()
    }

    /// Prefetches the first lines of remote memory that the next round writes, while signals are in
    /// transit.
    fn fetch_ahead(&mut self, prepared: &PreparedSchedule, membership: &Membership, round: usize) {
        let reductions = prepared.rounds.get(round).map_or(&[][..], |round| &round.reductions);
        let into = reductions.iter().flat_map(|reduce| &reduce.into);
        let remote = into.filter(|piece| piece.rank != membership.group_rank);
        let num_lines = LINES_AHEAD / remote.clone().count().max(1);
        for piece in remote {
            let Window { rank, start, bytes } = self.window(membership, piece);
            let bytes = bytes.min(num_lines * LINE);
            self.steps.push(Step::Fetch(Window { rank, start, bytes }));
        }
    }

    /// Window of a piece by its owner's descriptor; the recorded call has validated it.
    fn window(&self, membership: &Membership, piece: &Piece) -> Window {
        let descriptor = &self.descriptors[piece.rank];
        let base = match piece.area {
            Area::Input(index) => descriptor.input + index as u64 * descriptor.input_stride,
            Area::Output => descriptor.output,
            Area::Scratch => unreachable!("there is no scratch"),
        };
        let rank = membership.ranks[piece.rank];
        Window { rank, start: base as usize + piece.start, bytes: piece.bytes }
    }

    /// Replays the call.
    #[inline]
    pub(super) fn replay(
        &self,
        endpoint: &Endpoint,
        shared: &SharedWorld,
        call: &Call<'_>,
        group: u64,
        number: u64,
    ) -> Result<(), Divergence> {
        let mut num_made = 0;
        for step in &self.steps {
            match step {
                Step::Signal(count, has_next) => {
                    num_made = *count;
                    if *count == 1 && call.record.is_some() {
                        shared.publish_descriptor(group, number, &self.descriptor);
                    } else if *count == 1 {
                        shared.publish_addresses(group, number, &self.descriptor);
                    } else {
                        shared.signal(group, number, *count);
                    }
                    // The line of the next signal, in this call or in the next one.
                    if *has_next {
                        shared.fetch_line(group, number, count + 1);
                    } else {
                        shared.fetch_line(group, number + 1, 1);
                    }
                    shared.wake(self.peers.iter().copied());
                    // Peers need a moment to see the signal; write the call record meanwhile.
                    call.begin();
                }
                Step::Fetch(window) => {
                    let window = at(shared, window);
                    for start in (0..window.len()).step_by(LINE) {
                        window.fetch_for_writing(start);
                    }
                }
                Step::Wait { round, group_rank, peer, num_signals, reads_descriptor } => {
                    let timeout = call.timeout;
                    if let Err(why) =
                        shared.wait_for_signal(*peer, group, number, *num_signals, timeout)
                    {
                        let why = Some(why);
                        return Err(Divergence { round: *round, num_signals: num_made, why });
                    }
                    let known = &self.descriptors[*group_rank];
                    let is_bare = call.record.is_none();
                    if *reads_descriptor
                        && !shared.descriptor(*peer, group, number).is(known, is_bare)
                    {
                        return Err(Divergence { round: *round, num_signals: num_made, why: None });
                    }
                }
                Step::Copy(into, from) => {
                    at(shared, into).copy_from(at(shared, from).as_source());
                }
                Step::Reduce { round, index, into, sources } => {
                    let order = &call.prepared.rounds[*round].reductions[*index].order;
                    let [into, sources] = [into, sources].map(|range| &self.windows[range.clone()]);
                    reduce(endpoint, shared, call, order, into, sources);
                }
            }
        }
        shared.finish(group, number);
        shared.wake(self.peers.iter().copied());
        Ok(())
    }
}

/// Extent of a buffer; an empty buffer needs no offset.
#[inline]
fn extent(offset: Option<usize>, len: usize) -> Option<Extent> {
    if len == 0 { Some((0, 0)) } else { Some((offset?, len)) }
}

#[inline]
fn at<'a>(shared: &'a SharedWorld, window: &Window) -> Target<'a, u8> {
    target(shared.segment(window.rank), window.start, window.bytes)
}

#[inline]
fn reduce(
    endpoint: &Endpoint,
    shared: &SharedWorld,
    call: &Call<'_>,
    order: &kernel::Order,
    into: &[Window],
    from: &[Window],
) {
    let is_mean = call.reduction == Reduction::Mean;
    let divide_by = is_mean.then_some(call.prepared.facts.num_contributions);
    let run = |sources: &[Source<'_, u8>], targets: &[Target<'_, u8>]| {
        let job = Job { reduction: call.reduction, divide_by, order, sources, targets };
        kernel::reduce(endpoint.isa(), call.dtype, &job);
    };
    // Fast path for two ranks: filling the arrays below costs time.
    if let ([first, second], [a, b]) = (into, from) {
        let sources = [at(shared, a).as_source(), at(shared, b).as_source()];
        run(&sources, &[at(shared, first), at(shared, second)]);
        return;
    }
    let mut sources = [Source::of(&[]); MAX_WINDOWS];
    let mut targets = [target(shared.own(), 0, 0); MAX_WINDOWS];
    for (source, window) in sources.iter_mut().zip(from) {
        *source = at(shared, window).as_source();
    }
    for (target, window) in targets.iter_mut().zip(into) {
        *target = at(shared, window);
    }
    run(&sources[..from.len()], &targets[..into.len()]);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockstep_platform::real;

    use super::MAX_RECORDS;
    use crate::{ArenaBuffer, Cause, Comm, Options, Reduction};

    fn with_ranks(num_ranks: usize, body: impl Fn(Comm) + Sync) {
        let options = Options { arena_bytes: 1 << 20, timeout: Duration::from_mins(1) };
        let ends = Comm::threads(&real(), num_ranks, &options).unwrap();
        std::thread::scope(|scope| {
            for comm in ends {
                scope.spawn(|| body(comm));
            }
        });
    }

    /// All-reduces and checks every element.
    fn check_all_reduce(comm: &Comm, buffer: &mut ArenaBuffer<f32>, call: usize) {
        let n = comm.group_size();
        for (index, x) in buffer.iter_mut().enumerate() {
            *x = (call + index + comm.group_rank()) as f32;
        }
        comm.all_reduce(buffer, Reduction::Sum).unwrap();
        for (index, &x) in buffer.iter().enumerate() {
            let expected = (n * (call + index) + n * (n - 1) / 2) as f32;
            assert!((x - expected).abs() < 0.5, "call {call}: element {index} is {x}");
        }
    }

    #[test]
    fn results_are_right_however_the_ranks_change_their_buffers() {
        for num_ranks in [2, 3, 5] {
            with_ranks(num_ranks, |comm| {
                let mut buffers = [0; 3].map(|_| comm.allocate::<f32>(100).unwrap());
                for call in 0..60 {
                    // Rank 0 keeps its buffer; the others change theirs at different calls.
                    let which = (call / (1 + 3 * comm.group_rank())) * comm.group_rank() % 3;
                    check_all_reduce(&comm, &mut buffers[which], call);
                    if call % 7 == 6 {
                        // A call that lets ranks run ahead, in between.
                        comm.broadcast(&mut buffers[which], call % comm.group_size()).unwrap();
                    }
                }
                let count = comm.counters().of(lockstep_schedule::Op::AllReduce);
                assert_eq!(count.calls, 60);
                assert_eq!(count.traffic.read_bytes % 60, 0, "every call moves the same");
            });
        }
    }

    #[test]
    fn results_are_right_with_more_buffers_than_records() {
        with_ranks(2, |comm| {
            let many = 0..2 * MAX_RECORDS;
            let mut buffers: Vec<_> = many.map(|_| comm.allocate::<f32>(10).unwrap()).collect();
            for call in 0..200 {
                let which = call % buffers.len();
                check_all_reduce(&comm, &mut buffers[which], call);
            }
        });
    }

    #[test]
    fn every_reduction_replays_correctly() {
        with_ranks(3, |comm| {
            let mut buffer = comm.allocate::<f32>(50).unwrap();
            for _ in 0..3 {
                for (reduction, expected) in [
                    (Reduction::Sum, 6.0_f32),
                    (Reduction::Mean, 2.0),
                    (Reduction::Max, 3.0),
                    (Reduction::Min, 1.0),
                ] {
                    buffer.fill(1.0 + comm.group_rank() as f32);
                    comm.all_reduce(&mut buffer, reduction).unwrap();
                    assert!(buffer.iter().all(|x| x.to_bits() == expected.to_bits()));
                }
            }
        });
    }

    #[test]
    fn a_different_call_is_detected_after_many_replays() {
        with_ranks(2, |comm| {
            let mut buffer = comm.allocate::<f32>(50).unwrap();
            for call in 0..10 {
                check_all_reduce(&comm, &mut buffer, call);
            }
            let count = if comm.group_rank() == 0 { 50 } else { 49 };
            let error = comm.all_reduce(&mut buffer[..count], Reduction::Sum).unwrap_err();
            let verdict = error.verdict().expect("the ranks agree on a verdict");
            assert!(matches!(verdict.cause, Cause::Mismatch { .. }), "{error}");
        });
    }

    #[test]
    fn a_rank_missing_from_a_replay_is_named() {
        with_ranks(2, |comm| {
            let mut buffer = comm.allocate::<f32>(50).unwrap();
            for call in 0..10 {
                check_all_reduce(&comm, &mut buffer, call);
            }
            if comm.group_rank() == 0 {
                let hasty = comm.within(Duration::from_millis(50));
                let error = hasty.all_reduce(&mut buffer, Reduction::Sum).unwrap_err();
                let text = error.to_string();
                let is_named =
                    text.contains("waited 50 ms for rank 1") || text.contains("rank 1 left");
                assert!(is_named, "{text}");
            }
        });
    }
}
