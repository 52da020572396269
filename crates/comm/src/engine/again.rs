//! The same call again: where everything lies is remembered.
//!
//! A training step makes the same calls on the same buffers as the step before. Looking up where
//! every piece of a schedule lies takes longer than the flags and the sum of a short vector. So
//! the engine takes notes of a call: signals, waits and windows, in order. When the same plan is
//! called on the same buffers, it follows the notes. The other ranks show their cards as in every
//! call; when one of them says something new, the engine goes on from there without notes.
//!
//! Notes are taken of schedules that only touch memory which all ranks see, without scratch, and
//! in which every rank waits for every other.

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use super::{Buffers, Call, Engine, Team};
use crate::element::Reduction;
use crate::error::Interruption;
use crate::flags::Card;
use crate::kernel::{self, Job};
use crate::node::Node;
use crate::plan::{Area, Piece, Plan};
use crate::transport::shared::SharedWorld;

/// Calls of one plan that are remembered: a model has several buckets of one size.
const MAX_NOTES: usize = 16;

/// After so many calls without notes, one that is remembered makes room.
const MAX_MISSES: u32 = 64;

/// Windows of a reduction, at most.
const MAX_WINDOWS: usize = 8;

/// Cache lines of other ranks' memory that are fetched ahead, all windows together: as many as
/// arrive while a flag does. Sixteen were slower: the flag had to wait for them.
const LINES_AHEAD: usize = 8;

/// Bytes of a cache line.
const LINE: usize = 64;

/// What is remembered of the calls of one plan.
#[derive(Default)]
pub(crate) struct Notebook {
    notes: Vec<Notes>,
    num_misses: u32,
}

/// What one call did.
pub(crate) struct Notes {
    /// Where the caller's buffers lay and how long they were.
    input: Extent,
    output: Extent,
    in_place: bool,
    /// What this rank showed, and what the others did, by position.
    card: Card,
    cards: Vec<Card>,
    peers: Vec<Rank>,
    steps: Vec<Step>,
}

/// Where a buffer begins in the rank's segment, and its length.
type Extent = (usize, usize);

/// A part of somebody's segment.
#[derive(Clone, Copy)]
struct Window {
    rank: Rank,
    start: usize,
    bytes: usize,
}

enum Step {
    /// The signal with this number; whether there is another after it.
    Signal(u32, bool),
    /// The beginning of what will be written soon.
    Fetch(Window),
    Wait {
        round: usize,
        member: usize,
        peer: Rank,
        num_signals: u32,
        /// Whether the peer's card is looked at.
        shows_card: bool,
    },
    Copy(Window, Window),
    Reduce {
        round: usize,
        index: usize,
        into: Vec<Window>,
        sources: Vec<Window>,
    },
}

/// Whether anybody's scratch is read or written; it moves from call to call.
fn touches_scratch(plan: &Plan) -> bool {
    let is_scratch = |piece: &Piece| piece.area == Area::Scratch;
    plan.rounds.iter().any(|round| {
        let mut copies = round.copies.iter().flat_map(|(into, from)| [into, from]);
        let sums = round.reductions.iter().flat_map(|sum| sum.into.iter().chain(&sum.sources));
        copies.any(is_scratch) || sums.into_iter().any(is_scratch)
    })
}

/// Where a call goes on without notes, in the waits of a round.
#[derive(Default)]
pub(super) struct Halt {
    pub(super) round: usize,
    pub(super) num_signals: u32,
    /// What went wrong, if something did.
    pub(super) why: Option<Interruption>,
}

impl Engine {
    /// Makes the call as it was made before; where that is not possible, all or part of it is left.
    #[inline]
    pub(super) fn follow_notes(
        &mut self,
        node: &Node,
        shared: &SharedWorld,
        team: &Team,
        call: &Call<'_>,
        notebook: &Notebook,
    ) -> Result<(), Halt> {
        let (Some(found), false) = (call.notes, self.was_open) else {
            call.begin();
            return Err(Halt::default());
        };
        notebook.get(found).follow(node, shared, call, team.id, self.call)?;
        self.moved = call.plan.traffic;
        Ok(())
    }
}

impl Notebook {
    /// The number of the notes for these buffers, if there are any.
    #[inline]
    pub(crate) fn find(&self, buffers: &Buffers<'_>) -> Option<usize> {
        self.notes.iter().position(|notes| notes.suit(buffers))
    }

    #[inline]
    pub(super) fn get(&self, number: usize) -> &Notes {
        &self.notes[number]
    }

    /// Keeps notes in the place of older ones for the same buffers.
    pub(super) fn keep(&mut self, notes: Notes) {
        let is_same = |old: &Notes| old.input == notes.input && old.output == notes.output;
        if let Some(old) = self.notes.iter_mut().find(|old| is_same(old)) {
            *old = notes;
        } else if self.notes.len() < MAX_NOTES {
            self.notes.push(notes);
        } else {
            self.num_misses += 1;
            if self.num_misses.is_multiple_of(MAX_MISSES) {
                self.notes.remove(0);
                self.notes.push(notes);
            }
        }
    }
}

impl Notes {
    #[inline]
    fn suit(&self, buffers: &Buffers<'_>) -> bool {
        extent(buffers.output_offset, buffers.output.len()) == Some(self.output)
            && extent(buffers.input_offset, buffers.input.len()) == Some(self.input)
            && buffers.in_place == self.in_place
    }

    /// Notes of a call that went well, if there is a point in taking them.
    pub(super) fn take(
        call: &Call<'_>,
        team: &Team,
        buffers: &Buffers<'_>,
        card: &Card,
        cards: &[(u64, Card)],
    ) -> Option<Self> {
        let plan = call.plan;
        let is_divided_later = call.reduction == Reduction::Mean && !plan.facts.has_whole_sums;
        let is_simple = plan.facts.is_closed && !touches_scratch(plan) && !is_divided_later;
        // Alone there is nobody to look up.
        if !is_simple || team.members.len() == 1 {
            return None;
        }
        let mut shown: Vec<Card> = cards.iter().map(|(_, card)| *card).collect();
        shown[team.position] = *card;
        let position = team.position;
        let others = team.members.iter().enumerate().filter(|(member, _)| *member != position);
        let mut notes = Self {
            input: extent(buffers.input_offset, buffers.input.len())?,
            output: extent(buffers.output_offset, buffers.output.len())?,
            in_place: buffers.in_place,
            card: *card,
            cards: shown,
            peers: others.map(|(_, rank)| *rank).collect(),
            steps: Vec::new(),
        };
        (0..plan.rounds.len()).all(|round| notes.add_round(plan, team, round)).then_some(notes)
    }

    /// Adds the steps of a round; false where there is one that notes cannot have.
    fn add_round(&mut self, plan: &Plan, team: &Team, round: usize) -> bool {
        let steps = &plan.rounds[round];
        let has_messages = !steps.sends.is_empty() || !steps.recvs.is_empty();
        let is_wide = |windows: &Vec<Piece>| windows.len() > MAX_WINDOWS;
        let mut reductions = steps.reductions.iter();
        if has_messages
            || steps.num_signals > 1
            || reductions.any(|reduce| is_wide(&reduce.into) || is_wide(&reduce.sources))
        {
            return false;
        }
        let num_before: u32 = plan.rounds[..round].iter().map(|round| round.num_signals).sum();
        if steps.num_signals == 1 {
            let number = num_before + 1;
            self.steps.push(Step::Signal(number, number < plan.num_signals));
        }
        // After the signal: nothing may delay that.
        if !steps.waits.is_empty() {
            self.fetch_ahead(plan, team, round + 1);
        }
        for &(member, num_signals) in &steps.waits {
            let is_known =
                |step: &Step| matches!(step, Step::Wait { member: m, .. } if *m == member);
            let shows_card = !self.steps.iter().any(is_known);
            let peer = team.members[member];
            self.steps.push(Step::Wait { round, member, peer, num_signals, shows_card });
        }
        for (into, from) in &steps.copies {
            self.steps.push(Step::Copy(self.window(team, into), self.window(team, from)));
        }
        for (index, reduce) in steps.reductions.iter().enumerate() {
            let windows = |pieces: &[Piece]| pieces.iter().map(|p| self.window(team, p)).collect();
            let (into, sources) = (windows(&reduce.into), windows(&reduce.sources));
            self.steps.push(Step::Reduce { round, index, into, sources });
        }
        true
    }

    /// While signals go to and fro, the first lines that the next round will change in other ranks'
    /// memory can be on their way here.
    fn fetch_ahead(&mut self, plan: &Plan, team: &Team, round: usize) {
        let reductions = plan.rounds.get(round).map_or(&[][..], |round| &round.reductions);
        let into = reductions.iter().flat_map(|reduce| &reduce.into);
        let elsewhere: Vec<&Piece> = into.filter(|piece| piece.member != team.position).collect();
        let num_lines = LINES_AHEAD / elsewhere.len().max(1);
        for piece in elsewhere {
            let Window { rank, start, bytes } = self.window(team, piece);
            let bytes = bytes.min(num_lines * LINE);
            self.steps.push(Step::Fetch(Window { rank, start, bytes }));
        }
    }

    /// Where a piece lies, as its owner showed; the call that is noted down has looked there.
    fn window(&self, team: &Team, piece: &Piece) -> Window {
        let card = &self.cards[piece.member];
        let base = match piece.area {
            Area::Input(index) => card.input + index as u64 * card.input_stride,
            Area::Output => card.output,
            Area::Scratch => unreachable!("there is no scratch"),
        };
        let rank = team.members[piece.member];
        Window { rank, start: base as usize + piece.start, bytes: piece.bytes }
    }

    /// Makes the call again.
    #[inline]
    pub(super) fn follow(
        &self,
        node: &Node,
        shared: &SharedWorld,
        call: &Call<'_>,
        group: u64,
        number: u64,
    ) -> Result<(), Halt> {
        let mut num_made = 0;
        for step in &self.steps {
            match step {
                Step::Signal(count, has_next) => {
                    num_made = *count;
                    if *count == 1 && call.flight.is_some() {
                        shared.show(group, number, &self.card);
                    } else if *count == 1 {
                        shared.show_places(group, number, &self.card);
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
                    // The others need a moment to see the signal, and this is what it is used for.
                    call.begin();
                }
                Step::Fetch(window) => {
                    let window = at(shared, window);
                    for start in (0..window.len()).step_by(LINE) {
                        window.fetch_for_writing(start);
                    }
                }
                Step::Wait { round, member, peer, num_signals, shows_card } => {
                    let timeout = call.timeout;
                    if let Err(why) =
                        shared.wait_for_signal(*peer, group, number, *num_signals, timeout)
                    {
                        let why = Some(why);
                        return Err(Halt { round: *round, num_signals: num_made, why });
                    }
                    let known = &self.cards[*member];
                    let is_bare = call.flight.is_none();
                    if *shows_card && !shared.card(*peer, group, number).is(known, is_bare) {
                        return Err(Halt { round: *round, num_signals: num_made, why: None });
                    }
                }
                Step::Copy(into, from) => {
                    at(shared, into).copy_from(at(shared, from).as_source());
                }
                Step::Reduce { round, index, into, sources } => {
                    let order = &call.plan.rounds[*round].reductions[*index].order;
                    reduce(node, shared, call, order, into, sources);
                }
            }
        }
        shared.finish(group, number);
        shared.wake(self.peers.iter().copied());
        Ok(())
    }
}

/// A buffer that is empty lies nowhere, and that is good enough.
#[inline]
fn extent(offset: Option<usize>, len: usize) -> Option<Extent> {
    if len == 0 { Some((0, 0)) } else { Some((offset?, len)) }
}

#[inline]
fn at<'a>(shared: &'a SharedWorld, window: &Window) -> Target<'a, u8> {
    shared.segment(window.rank).target(window.start, window.bytes)
}

#[inline]
fn reduce(
    node: &Node,
    shared: &SharedWorld,
    call: &Call<'_>,
    order: &kernel::Order,
    into: &[Window],
    from: &[Window],
) {
    let is_mean = call.reduction == Reduction::Mean;
    let divide_by = is_mean.then_some(call.plan.facts.num_addends);
    let run = |sources: &[Source<'_, u8>], targets: &[Target<'_, u8>]| {
        let job = Job { reduction: call.reduction, divide_by, order, sources, targets };
        kernel::reduce(node.isa(), call.dtype, &job);
    };
    // Two ranks are common, and setting up more than that takes its time.
    if let ([first, second], [a, b]) = (into, from) {
        let sources = [at(shared, a).as_source(), at(shared, b).as_source()];
        run(&sources, &[at(shared, first), at(shared, second)]);
        return;
    }
    let mut sources = [Source::of(&[]); MAX_WINDOWS];
    let mut targets = [shared.own().target(0, 0); MAX_WINDOWS];
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

    use super::MAX_NOTES;
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

    /// Adds up and checks every element.
    fn add_up(comm: &Comm, buffer: &mut ArenaBuffer<f32>, call: usize) {
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
                    // Rank 0 stays; the others change at times of their own, and stay for a while.
                    let which = (call / (1 + 3 * comm.group_rank())) * comm.group_rank() % 3;
                    add_up(&comm, &mut buffers[which], call);
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
    fn more_buffers_than_are_remembered_are_right_too() {
        with_ranks(2, |comm| {
            let many = 0..2 * MAX_NOTES;
            let mut buffers: Vec<_> = many.map(|_| comm.allocate::<f32>(10).unwrap()).collect();
            for call in 0..200 {
                let which = call % buffers.len();
                add_up(&comm, &mut buffers[which], call);
            }
        });
    }

    #[test]
    fn every_reduction_is_remembered_as_what_it_is() {
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
    fn a_different_call_is_noticed_after_many_that_were_the_same() {
        with_ranks(2, |comm| {
            let mut buffer = comm.allocate::<f32>(50).unwrap();
            for call in 0..10 {
                add_up(&comm, &mut buffer, call);
            }
            let count = if comm.group_rank() == 0 { 50 } else { 49 };
            let error = comm.all_reduce(&mut buffer[..count], Reduction::Sum).unwrap_err();
            let verdict = error.verdict().expect("the ranks settle on something");
            assert!(matches!(verdict.cause, Cause::Mismatch { .. }), "{error}");
        });
    }

    #[test]
    fn a_rank_that_does_not_come_again_is_named() {
        with_ranks(2, |comm| {
            let mut buffer = comm.allocate::<f32>(50).unwrap();
            for call in 0..10 {
                add_up(&comm, &mut buffer, call);
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
