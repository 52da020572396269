//! Runs plans: one rank's end of a group, call after call.
//!
//! The engine has no algorithm of its own. It goes through the rounds of a plan, turns every piece
//! into a window of memory, its own or a peer's, and does what the round says: signal, wait, copy,
//! reduce, exchange messages. Around that it keeps the promises of the library: every wait has a
//! deadline, a different call on another rank is noticed, and when one rank fails all do.
//!
//! - `again`: calls that are made again and again
//! - `failing`: what a call writes down when it begins, and says when it fails

mod again;
mod failing;

use std::sync::Arc;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use crate::element::{Dtype, Reduction};
use crate::error::{CommError, Interruption};
use crate::flags::Card;
use crate::kernel::{self, Job};
use crate::label::Label;
use crate::node::{Lane, Node};
use crate::plan::{Area, Piece, Plan, PlanRound, Traffic};
use crate::recorder::Flight;
use crate::signature::Signature;
use crate::transport::shared::SharedWorld;
use crate::transport::{Envelope, Round};
use crate::workspace::{Lists, Staging, Workspace, grow, reuse};
pub(crate) use again::Notebook;
use again::{Halt, Notes};

/// A call with its plan.
pub(crate) struct Call<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) signature: Signature,
    pub(crate) dtype: Dtype,
    pub(crate) reduction: Reduction,
    pub(crate) timeout: Duration,
    pub(crate) lane: Lane,
    pub(crate) label: Label,
    /// The notes for this call in the plan's notebook.
    pub(crate) notes: Option<usize>,
    /// Where it is written down; nothing if signatures are not even to be compared.
    pub(crate) flight: Option<&'a Flight<'a>>,
}

/// The caller's memory. Input and output may be the same.
#[derive(Clone, Copy)]
pub(crate) struct Buffers<'a> {
    /// All inputs, one after the other.
    pub(crate) input: Source<'a, u8>,
    pub(crate) output: Target<'a, u8>,
    /// Where they lie in the rank's own segment, if they do.
    pub(crate) input_offset: Option<usize>,
    pub(crate) output_offset: Option<usize>,
    /// Whether the input is the output.
    pub(crate) in_place: bool,
}

/// Who takes part, as one rank sees it.
pub(crate) struct Team {
    pub(crate) members: Vec<Rank>,
    pub(crate) position: usize,
    pub(crate) id: u64,
    pub(crate) name: String,
    /// How many vectors this rank brings to a sum.
    pub(crate) num_inputs: usize,
}

/// What one rank's end of a group keeps between calls.
#[derive(Default)]
pub(crate) struct Engine {
    /// The number of the last call.
    call: u64,
    /// Whether the last call let ranks run ahead.
    was_open: bool,
    /// What the members showed, and in which call.
    cards: Vec<(u64, Card)>,
    /// What the last call has moved.
    moved: Traffic,
    /// The last calls.
    history: [(u64, Signature); HISTORY],
    memory: Workspace,
}

/// Calls that are remembered, for reports.
const HISTORY: usize = 16;

impl Engine {
    /// What the last call has moved, as far as it came.
    pub(crate) fn moved(&self) -> &Traffic {
        &self.moved
    }

    /// The number of the next call.
    #[inline]
    pub(crate) fn next_call(&self) -> u64 {
        self.call + 1
    }

    /// Runs a plan on the caller's memory.
    pub(crate) fn run(
        &mut self,
        node: &Node,
        team: &Team,
        call: &Call<'_>,
        buffers: Buffers<'_>,
        notebook: &mut Notebook,
    ) -> Result<(), CommError> {
        self.call += 1;
        self.moved = Traffic::default();
        self.history[(self.call % HISTORY as u64) as usize] = (self.call, call.signature);
        if call.plan.facts.uses_memory {
            // It is written down while it waits, or else when there is reason to.
            self.run_in_memory(node, team, call, buffers, notebook)
        } else {
            call.begin();
            self.run_with_messages(node, team, call, buffers)
        }
    }

    fn run_with_messages(
        &mut self,
        node: &Node,
        team: &Team,
        call: &Call<'_>,
        buffers: Buffers<'_>,
    ) -> Result<(), CommError> {
        grow(&mut self.memory.private, call.plan.scratch_bytes);
        grow(&mut self.memory.incoming, call.plan.incoming_bytes);
        let scratch = Target::of(&mut self.memory.private).cast();
        let incoming = Target::of(&mut self.memory.incoming).cast();
        let mut run = Run {
            node,
            team,
            call,
            number: self.call,
            shared: node.shared(),
            buffers,
            scratch,
            incoming,
            card: Card { signature: call.signature.to_words(), ..Card::default() },
            cards: &mut self.cards,
            moved: &mut self.moved,
            history: &self.history,
            lists: &mut self.memory.lists,
            num_signals: 0,
            partial_bytes: 0,
        };
        if let Some(shared) = node.shared() {
            // Shown for those who make another call, which may be one with signals.
            if self.was_open {
                run.wait_for_stragglers()?;
            }
            shared.show(team.id, self.call, &run.card);
            shared.wake(team.members.iter().copied());
        }
        run.all_rounds()?;
        if let Some(shared) = node.shared() {
            // Messages wait in rings, so a rank may be calls ahead of another.
            self.was_open = true;
            shared.finish(team.id, self.call);
            shared.wake(team.members.iter().copied());
        }
        Ok(())
    }

    fn run_in_memory(
        &mut self,
        node: &Node,
        team: &Team,
        call: &Call<'_>,
        buffers: Buffers<'_>,
        notebook: &mut Notebook,
    ) -> Result<(), CommError> {
        let shared = node.shared().expect("selection knows who sees whose memory");
        let plan = call.plan;
        let number = self.call;
        let halt = match self.follow_notes(node, shared, team, call, notebook) {
            Ok(()) => return Ok(()),
            Err(halt) => halt,
        };
        let staging = Staging::new(plan, &buffers);
        self.memory.prepare(shared, plan, number, staging.bytes)?;
        grow(&mut self.memory.incoming, plan.incoming_bytes);
        let scratch_start = self.memory.scratch_start(number);
        let staged = match &self.memory.staging {
            Some(block) if staging.bytes > 0 => {
                staging.stage(shared, plan, block.range().start, buffers)
            }
            _ => buffers,
        };
        let card = Card {
            signature: call.signature.to_words(),
            input: staged.input_offset.unwrap_or(0) as u64,
            input_stride: plan.input_bytes as u64,
            output: staged.output_offset.unwrap_or(0) as u64,
            scratch: scratch_start as u64,
        };
        let mut run = Run {
            node,
            team,
            call,
            number,
            shared: Some(shared),
            buffers: staged,
            scratch: shared.own().target(scratch_start, plan.scratch_bytes),
            incoming: Target::of(&mut self.memory.incoming).cast(),
            card,
            cards: &mut self.cards,
            moved: &mut self.moved,
            history: &self.history,
            lists: &mut self.memory.lists,
            num_signals: 0,
            partial_bytes: 0,
        };
        if self.was_open {
            run.wait_for_stragglers()?;
        }
        run.rounds_after(halt)?;
        self.was_open = !plan.facts.is_closed;
        shared.finish(team.id, number);
        // Where ranks may run ahead, one of them may sleep until this one is through.
        shared.wake(team.members.iter().copied());
        shared.fetch_line(team.id, number + 1, 1);
        if staging.bytes == 0
            && let Some(notes) = Notes::take(call, team, &buffers, &card, &self.cards)
        {
            notebook.keep(notes);
        }
        if staging.is_output_staged {
            let bytes = plan.output_bytes;
            buffers.output.part(0..bytes).copy_from(staged.output.as_source().part(0..bytes));
        }
        Ok(())
    }
}

/// A call on its way.
struct Run<'a> {
    node: &'a Node,
    team: &'a Team,
    call: &'a Call<'a>,
    number: u64,
    shared: Option<&'a Arc<SharedWorld>>,
    buffers: Buffers<'a>,
    scratch: Target<'a, u8>,
    incoming: Target<'a, u8>,
    /// What this rank shows.
    card: Card,
    /// What the others showed, and in which call, by position.
    cards: &'a mut Vec<(u64, Card)>,
    moved: &'a mut Traffic,
    history: &'a [(u64, Signature)],
    lists: &'a mut Lists,
    num_signals: u32,
    /// Bytes of messages of the round that is under way.
    partial_bytes: u64,
}

impl<'a> Run<'a> {
    #[inline]
    fn all_rounds(&mut self) -> Result<(), CommError> {
        self.rounds_after(Halt::default())
    }

    /// The rounds from where notes ended, or all of them.
    #[inline]
    fn rounds_after(&mut self, halt: Halt) -> Result<(), CommError> {
        let plan = self.call.plan;
        self.cards.resize(self.team.members.len(), (0, Card::default()));
        self.num_signals = halt.num_signals;
        for round in &plan.rounds[..halt.round] {
            self.moved.add(&round.traffic);
        }
        if let Some(why) = halt.why {
            return Err(self.failed(why));
        }
        let mut num_due = 0;
        for (index, round) in plan.rounds.iter().enumerate() {
            num_due += round.num_signals;
            if index >= halt.round {
                self.round(round, num_due - self.num_signals)?;
            }
        }
        if self.call.reduction == Reduction::Mean && !plan.facts.has_whole_sums {
            let output = self.buffers.output.part(0..plan.output_bytes);
            kernel::divide(self.node.isa(), self.call.dtype, output, plan.facts.num_addends);
        }
        Ok(())
    }

    #[inline]
    fn round(&mut self, round: &PlanRound, num_signals: u32) -> Result<(), CommError> {
        if num_signals > 0 {
            self.signal(num_signals);
        }
        for &(member, count) in &round.waits {
            self.wait(member, count)?;
        }
        for (into, from) in &round.copies {
            self.copy(into, from)?;
        }
        for reduce in &round.reductions {
            self.reduce(reduce)?;
        }
        if !round.sends.is_empty() || !round.recvs.is_empty() {
            self.exchange(round)?;
        }
        self.moved.add(&round.traffic);
        self.partial_bytes = 0;
        Ok(())
    }

    #[inline]
    fn signal(&mut self, times: u32) {
        let shared = self.shared.expect("a schedule with signals runs in shared memory");
        let (group, number) = (self.team.id, self.number);
        for _ in 0..times {
            self.num_signals += 1;
            match self.num_signals {
                1 => shared.show(group, number, &self.card),
                count => shared.signal(group, number, count),
            }
        }
        // The others still look at the line of the first signal, for the card; only one that will
        // be written is worth taking from them.
        if self.num_signals < self.call.plan.num_signals {
            shared.fetch_line(group, number, self.num_signals + 1);
        }
        shared.wake(self.team.members.iter().copied());
    }

    #[inline]
    fn wait(&mut self, member: usize, count: u32) -> Result<(), CommError> {
        let shared = self.shared.expect("a schedule with waits runs in shared memory");
        let (group, number) = (self.team.id, self.number);
        let peer = self.team.members[member];
        let came = shared.wait_for_signal(peer, group, number, count, self.call.timeout);
        came.map_err(|why| self.failed(why))?;
        if self.cards[member].0 == number {
            return Ok(());
        }
        let card = shared.card(peer, group, number);
        if card.signature != self.card.signature && self.call.flight.is_some() {
            let theirs = Signature::from_words(card.signature);
            return Err(self.failed(Interruption::Mismatch { peer, theirs, number: None }));
        }
        self.cards[member] = (number, card);
        Ok(())
    }

    /// Waits until nobody can still be reading the card that this call will overwrite.
    fn wait_for_stragglers(&mut self) -> Result<(), CommError> {
        let shared = self.shared.expect("only such calls leave stragglers");
        let earlier = self.number.saturating_sub(2);
        for &peer in &self.team.members {
            if peer != self.node.rank() && shared.sees(peer) {
                let is_through = || shared.has_finished(peer, self.team.id, earlier);
                shared
                    .wait_until(peer, self.call.timeout, is_through)
                    .map_err(|why| self.failed(why))?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, into: &Piece, from: &Piece) -> Result<(), CommError> {
        self.target(into)?.copy_from(self.source(from)?);
        Ok(())
    }

    #[inline]
    fn reduce(&mut self, reduce: &crate::plan::Reduce) -> Result<(), CommError> {
        let is_whole = self.call.plan.facts.has_whole_sums;
        let is_mean = self.call.reduction == Reduction::Mean;
        let divide_by = (is_mean && is_whole).then_some(self.call.plan.facts.num_addends);
        let run = |sources: &[Source<'_, u8>], targets: &[Target<'_, u8>]| {
            let reduction = self.call.reduction;
            let job = Job { reduction, divide_by, order: &reduce.order, sources, targets };
            kernel::reduce(self.node.isa(), self.call.dtype, &job);
        };
        // The common case needs no list on the heap.
        if let ([a, b], [first, second]) = (&reduce.sources[..], &reduce.into[..]) {
            run(&[self.source(a)?, self.source(b)?], &[self.target(first)?, self.target(second)?]);
        } else {
            let mut sources: Vec<Source<'_, u8>> = std::mem::take(&mut self.lists.sources);
            let mut targets: Vec<Target<'_, u8>> = std::mem::take(&mut self.lists.targets);
            for piece in &reduce.sources {
                sources.push(self.source(piece)?);
            }
            for piece in &reduce.into {
                targets.push(self.target(piece)?);
            }
            run(&sources, &targets);
            self.lists.sources = reuse(sources);
            self.lists.targets = reuse(targets);
        }
        Ok(())
    }

    fn exchange(&mut self, round: &PlanRound) -> Result<(), CommError> {
        let mut sends: Vec<(Rank, Source<'_, u8>)> = std::mem::take(&mut self.lists.sends);
        let mut recvs: Vec<(Rank, Target<'_, u8>)> = std::mem::take(&mut self.lists.recvs);
        for (peer, piece) in &round.sends {
            sends.push((self.team.members[*peer], self.source(piece)?));
        }
        let mut waiting_room = 0;
        for arrival in &round.recvs {
            let window = if arrival.with.is_none() {
                self.target(&arrival.into)?
            } else {
                let start = waiting_room;
                waiting_room += arrival.into.bytes.next_multiple_of(64);
                self.incoming.part(start..start + arrival.into.bytes)
            };
            recvs.push((self.team.members[arrival.peer], window));
        }
        let envelope =
            Envelope { group: self.team.id, number: self.number, signature: self.call.signature };
        let mut messages =
            Round { envelope, sends: &sends, recvs: &recvs, done_bytes: 0, arrived: &|_| {} };
        let result = self.node.exchange(self.call.lane, &mut messages, self.call.timeout);
        let done_bytes = messages.done_bytes;
        self.partial_bytes = done_bytes;
        result.map_err(|why| self.failed(why))?;
        let Traffic { sent_bytes, received_bytes, .. } = round.traffic;
        assert_eq!(done_bytes, sent_bytes + received_bytes, "wires move what the schedule says");
        for (arrival, (_, arrived)) in round.recvs.iter().zip(&recvs) {
            if let Some((with, order)) = &arrival.with {
                let sources = [arrived.as_source(), self.source(with)?];
                let targets = [self.target(&arrival.into)?];
                let reduction = self.call.reduction;
                let job =
                    Job { reduction, divide_by: None, order, sources: &sources, targets: &targets };
                kernel::reduce(self.node.isa(), self.call.dtype, &job);
            }
        }
        self.lists.sends = reuse(sends);
        self.lists.recvs = reuse(recvs);
        Ok(())
    }

    #[inline]
    fn source(&self, piece: &Piece) -> Result<Source<'a, u8>, CommError> {
        if piece.member == self.team.position {
            let range = piece.start..piece.start + piece.bytes;
            return Ok(match piece.area {
                Area::Input(index) => {
                    let start = index * self.call.plan.input_bytes + piece.start;
                    self.buffers.input.part(start..start + piece.bytes)
                }
                Area::Output => self.buffers.output.as_source().part(range),
                Area::Scratch => self.scratch.as_source().part(range),
            });
        }
        Ok(self.remote(piece)?.as_source())
    }

    #[inline]
    fn target(&self, piece: &Piece) -> Result<Target<'a, u8>, CommError> {
        if piece.member == self.team.position {
            let range = piece.start..piece.start + piece.bytes;
            return Ok(match piece.area {
                Area::Input(_) => unreachable!("a schedule never writes to an input"),
                Area::Output => self.buffers.output.part(range),
                Area::Scratch => self.scratch.part(range),
            });
        }
        self.remote(piece)
    }

    /// A place in a peer's memory. The peer said where, so it is looked at before it is used.
    #[inline]
    fn remote(&self, piece: &Piece) -> Result<Target<'a, u8>, CommError> {
        let shared = self.shared.expect("a schedule that looks elsewhere runs in shared memory");
        let (_, card) = &self.cards[piece.member];
        let base = match piece.area {
            Area::Input(index) => (index as u64)
                .checked_mul(card.input_stride)
                .and_then(|distance| card.input.checked_add(distance)),
            Area::Output => Some(card.output),
            Area::Scratch => Some(card.scratch),
        };
        let peer = self.team.members[piece.member];
        let start = base.and_then(|base| usize::try_from(base).ok()?.checked_add(piece.start));
        let window = start.and_then(|start| shared.segment(peer).try_target(start, piece.bytes));
        window.ok_or_else(|| {
            let reason = "it pointed to a place outside of its memory".to_owned();
            self.failed(Interruption::Lost { peer, reason })
        })
    }
}

#[cfg(test)]
mod tests;
