//! Runs prepared schedules on one rank of a group.
//!
//! The engine has no algorithm of its own. It walks the rounds of a prepared schedule, resolves
//! every piece to memory of this rank or of a peer, and executes the steps: signal, wait, copy,
//! reduce, send and receive. It guarantees that every wait has a deadline, that a different call on
//! another rank is detected, and that the failure of one rank fails all.
//!
//! - `replay`: replays calls that repeat on the same buffers
//! - `failure`: starts the call record, and turns an interruption into an error

mod failure;
mod replay;

use std::sync::Arc;
use std::time::Duration;

use lockstep_mesh::Rank;
use lockstep_platform::{Source, Target};

use crate::call_buffers::CallBuffers;
use crate::channel::Channel;
use crate::element::{Dtype, Reduction};
use crate::endpoint::Endpoint;
use crate::error::{CommError, Interruption};
use crate::flags::CallDescriptor;
use crate::kernel::{self, Job};
use crate::label::Label;
use crate::membership::Membership;
use crate::prepared_schedule::{Area, Piece, PreparedRound, PreparedSchedule, Traffic};
use crate::recorder::PendingRecord;
use crate::segment_window::{target, try_target};
use crate::signature::Signature;
use crate::transport::shared::SharedWorld;
use crate::transport::{Envelope, Round};
use crate::workspace::{Lists, Staging, Workspace, grow, reuse};
use replay::Divergence;
pub(crate) use replay::ReplayCache;

/// A call with its prepared schedule.
pub(crate) struct Call<'a> {
    pub(crate) prepared: &'a PreparedSchedule,
    pub(crate) signature: Signature,
    pub(crate) dtype: Dtype,
    pub(crate) reduction: Reduction,
    pub(crate) timeout: Duration,
    pub(crate) channel: Channel,
    pub(crate) label: Label,
    /// Index of the replay record for this call's buffers, if there is one.
    pub(crate) replay: Option<usize>,
    /// Record of the call; `None` for unchecked calls, whose signatures are not compared either.
    pub(crate) record: Option<&'a PendingRecord<'a>>,
}

/// State of a group that the engine keeps between calls.
#[derive(Default)]
pub(crate) struct Engine {
    /// Number of the last call.
    call: u64,
    /// Whether the last call let ranks run ahead of each other.
    was_open: bool,
    /// Last descriptor of each rank, with the number of its call.
    descriptors: Vec<(u64, CallDescriptor)>,
    /// Traffic of the last call.
    moved: Traffic,
    /// Signatures of the last calls.
    history: [(u64, Signature); HISTORY],
    memory: Workspace,
}

/// Number of calls in the history, for failure reports.
const HISTORY: usize = 16;

impl Engine {
    /// Traffic of the last call, complete or not.
    pub(crate) fn moved(&self) -> &Traffic {
        &self.moved
    }

    /// The number of the next call.
    #[inline]
    pub(crate) fn next_call(&self) -> u64 {
        self.call + 1
    }

    /// Frees private memory that calls have grown; the next one allocates what it needs.
    pub(crate) fn release_private(&mut self) {
        (self.memory.private, self.memory.incoming) = (Vec::new(), Vec::new());
    }

    /// Bytes of private memory that calls have grown.
    #[cfg(test)]
    pub(crate) fn private_bytes(&self) -> usize {
        size_of::<u64>() * (self.memory.private.capacity() + self.memory.incoming.capacity())
    }

    /// Runs a call on the caller's memory.
    pub(crate) fn run(
        &mut self,
        endpoint: &Endpoint,
        membership: &Membership,
        call: &Call<'_>,
        buffers: CallBuffers<'_>,
        replays: &mut ReplayCache,
    ) -> Result<(), CommError> {
        self.call += 1;
        self.moved = Traffic::default();
        self.history[(self.call % HISTORY as u64) as usize] = (self.call, call.signature);
        if call.prepared.facts.uses_memory {
            // The record is written during the first wait, off the critical path.
            self.run_in_memory(endpoint, membership, call, buffers, replays)
        } else {
            call.begin();
            self.run_with_messages(endpoint, membership, call, buffers)
        }
    }

    fn run_with_messages(
        &mut self,
        endpoint: &Endpoint,
        membership: &Membership,
        call: &Call<'_>,
        buffers: CallBuffers<'_>,
    ) -> Result<(), CommError> {
        grow(&mut self.memory.private, call.prepared.scratch_bytes);
        grow(&mut self.memory.incoming, call.prepared.incoming_bytes);
        let scratch = Target::of(&mut self.memory.private).cast();
        let incoming = Target::of(&mut self.memory.incoming).cast();
        let mut run = Run {
            endpoint,
            membership,
            call,
            number: self.call,
            shared: endpoint.shared(),
            buffers,
            scratch,
            incoming,
            descriptor: CallDescriptor {
                signature: call.signature.pack(),
                ..CallDescriptor::default()
            },
            descriptors: &mut self.descriptors,
            moved: &mut self.moved,
            history: &self.history,
            lists: &mut self.memory.lists,
            num_signals: 0,
            partial_bytes: 0,
        };
        if let Some(shared) = endpoint.shared() {
            // Published for ranks that make a different call, perhaps one with signals.
            if self.was_open {
                run.wait_for_stragglers()?;
            }
            shared.publish_descriptor(membership.id, self.call, &run.descriptor);
            shared.wake(membership.ranks.iter().copied());
        }
        run.all_rounds()?;
        if let Some(shared) = endpoint.shared() {
            // Rings buffer messages, so a rank may be several calls ahead of another.
            self.was_open = true;
            shared.finish(membership.id, self.call);
            shared.wake(membership.ranks.iter().copied());
        }
        Ok(())
    }

    fn run_in_memory(
        &mut self,
        endpoint: &Endpoint,
        membership: &Membership,
        call: &Call<'_>,
        buffers: CallBuffers<'_>,
        replays: &mut ReplayCache,
    ) -> Result<(), CommError> {
        let shared = endpoint.shared().expect("selection respects memory domains");
        let prepared = call.prepared;
        let number = self.call;
        let divergence = match self.replay_call(endpoint, shared, membership, call, replays) {
            Ok(()) => return Ok(()),
            Err(divergence) => divergence,
        };
        let staging = Staging::new(prepared, &buffers);
        self.memory.prepare(shared, prepared, number, staging.bytes)?;
        grow(&mut self.memory.incoming, prepared.incoming_bytes);
        let scratch_start = self.memory.scratch_start(number);
        let staged = match &self.memory.staging {
            Some(block) if staging.bytes > 0 => {
                staging.stage(shared, prepared, block.range().start, buffers)
            }
            _ => buffers,
        };
        let descriptor = CallDescriptor {
            signature: call.signature.pack(),
            input: staged.input_offset.unwrap_or(0) as u64,
            input_stride: prepared.input_bytes as u64,
            output: staged.output_offset.unwrap_or(0) as u64,
            scratch: scratch_start as u64,
        };
        let mut run = Run {
            endpoint,
            membership,
            call,
            number,
            shared: Some(shared),
            buffers: staged,
            scratch: target(shared.own(), scratch_start, prepared.scratch_bytes),
            incoming: Target::of(&mut self.memory.incoming).cast(),
            descriptor,
            descriptors: &mut self.descriptors,
            moved: &mut self.moved,
            history: &self.history,
            lists: &mut self.memory.lists,
            num_signals: 0,
            partial_bytes: 0,
        };
        if self.was_open {
            run.wait_for_stragglers()?;
        }
        if prepared.facts.waits_first {
            shared.enter(membership.id, number);
        }
        run.rounds_after(divergence)?;
        self.was_open = !prepared.facts.is_closed;
        shared.finish(membership.id, number);
        // A rank that ran ahead may sleep until this one has finished.
        shared.wake(membership.ranks.iter().copied());
        shared.fetch_line(membership.id, number + 1, 1);
        if staging.bytes == 0 {
            replays.record(call, membership, &buffers, &descriptor, &self.descriptors);
        }
        if staging.is_output_staged {
            let bytes = prepared.output_bytes;
            buffers.output.part(0..bytes).copy_from(staged.output.as_source().part(0..bytes));
        }
        Ok(())
    }
}

/// A call in progress.
struct Run<'a> {
    endpoint: &'a Endpoint,
    membership: &'a Membership,
    call: &'a Call<'a>,
    number: u64,
    shared: Option<&'a Arc<SharedWorld>>,
    buffers: CallBuffers<'a>,
    scratch: Target<'a, u8>,
    incoming: Target<'a, u8>,
    /// Descriptor of this rank.
    descriptor: CallDescriptor,
    /// Descriptors of all ranks and the numbers of their calls, by group rank.
    descriptors: &'a mut Vec<(u64, CallDescriptor)>,
    moved: &'a mut Traffic,
    history: &'a [(u64, Signature)],
    lists: &'a mut Lists,
    num_signals: u32,
    /// Message bytes of the round in progress.
    partial_bytes: u64,
}

impl<'a> Run<'a> {
    #[inline]
    fn all_rounds(&mut self) -> Result<(), CommError> {
        self.rounds_after(Divergence::default())
    }

    /// Runs the rounds from where a replay diverged, or all of them.
    #[inline]
    fn rounds_after(&mut self, divergence: Divergence) -> Result<(), CommError> {
        let prepared = self.call.prepared;
        self.descriptors.resize(self.membership.ranks.len(), (0, CallDescriptor::default()));
        self.num_signals = divergence.num_signals;
        for round in &prepared.rounds[..divergence.round] {
            self.moved.add(&round.traffic);
            // The replay has waited for these ranks, and has not kept their descriptors.
            for &(group_rank, _) in &round.waits {
                let shared = self.shared.expect("a replayed call runs in shared memory");
                let peer = self.membership.ranks[group_rank];
                let descriptor = shared.descriptor(peer, self.membership.id, self.number);
                self.descriptors[group_rank] = (self.number, descriptor);
            }
        }
        if let Some(why) = divergence.why {
            return Err(self.failed(why));
        }
        let mut num_due = 0;
        for (index, round) in prepared.rounds.iter().enumerate() {
            num_due += round.num_signals;
            if index >= divergence.round {
                self.round(round, num_due - self.num_signals)?;
            }
        }
        if self.call.reduction == Reduction::Mean && !prepared.facts.has_whole_sums {
            let output = self.buffers.output.part(0..prepared.output_bytes);
            kernel::divide(
                self.endpoint.isa(),
                self.call.dtype,
                output,
                prepared.facts.num_contributions,
            );
        }
        Ok(())
    }

    #[inline]
    fn round(&mut self, round: &PreparedRound, num_signals: u32) -> Result<(), CommError> {
        if num_signals > 0 {
            self.signal(num_signals);
        }
        for &(group_rank, count) in &round.waits {
            self.wait(group_rank, count)?;
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
        let (group, number) = (self.membership.id, self.number);
        for _ in 0..times {
            self.num_signals += 1;
            match self.num_signals {
                1 => shared.publish_descriptor(group, number, &self.descriptor),
                count => shared.signal(group, number, count),
            }
        }
        // Peers still read the descriptor on the line of the first signal; fetch only a line that
        // will be written.
        if self.num_signals < self.call.prepared.num_signals {
            shared.fetch_line(group, number, self.num_signals + 1);
        }
        shared.wake(self.membership.ranks.iter().copied());
    }

    #[inline]
    fn wait(&mut self, group_rank: usize, count: u32) -> Result<(), CommError> {
        let shared = self.shared.expect("a schedule with waits runs in shared memory");
        let (group, number) = (self.membership.id, self.number);
        let peer = self.membership.ranks[group_rank];
        let came = shared.wait_for_signal(peer, group, number, count, self.call.timeout);
        came.map_err(|why| self.failed(why))?;
        if self.descriptors[group_rank].0 == number {
            return Ok(());
        }
        let descriptor = shared.descriptor(peer, group, number);
        if descriptor.signature != self.descriptor.signature && self.call.record.is_some() {
            let theirs = Signature::unpack(descriptor.signature);
            return Err(self.failed(Interruption::Mismatch { peer, theirs, number: None }));
        }
        self.descriptors[group_rank] = (number, descriptor);
        Ok(())
    }

    /// Waits until no rank can still read the descriptor that this call overwrites.
    fn wait_for_stragglers(&mut self) -> Result<(), CommError> {
        let shared = self.shared.expect("only such calls leave stragglers");
        let earlier = self.number.saturating_sub(2);
        for &peer in &self.membership.ranks {
            if peer != self.endpoint.rank() && shared.sees(peer) {
                let is_through = || shared.has_finished(peer, self.membership.id, earlier);
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
    fn reduce(&mut self, reduce: &crate::prepared_schedule::Reduce) -> Result<(), CommError> {
        let is_whole = self.call.prepared.facts.has_whole_sums;
        let is_mean = self.call.reduction == Reduction::Mean;
        let divide_by = (is_mean && is_whole).then_some(self.call.prepared.facts.num_contributions);
        let run = |sources: &[Source<'_, u8>], targets: &[Target<'_, u8>]| {
            let reduction = self.call.reduction;
            let job = Job { reduction, divide_by, order: &reduce.order, sources, targets };
            kernel::reduce(self.endpoint.isa(), self.call.dtype, &job);
        };
        // Two sources and two targets, the common case, need no heap allocation.
        if let ([a, b], [first, second]) = (&reduce.sources[..], &reduce.into[..]) {
            run(&[self.source(a)?, self.source(b)?], &[self.target(first)?, self.target(second)?]);
        } else {
            let mut sources: Vec<Source<'_, u8>> = reuse(std::mem::take(&mut self.lists.sources));
            let mut targets: Vec<Target<'_, u8>> = reuse(std::mem::take(&mut self.lists.targets));
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

    fn exchange(&mut self, round: &PreparedRound) -> Result<(), CommError> {
        let mut sends: Vec<(Rank, Source<'_, u8>)> = reuse(std::mem::take(&mut self.lists.sends));
        let mut recvs: Vec<(Rank, Target<'_, u8>)> = reuse(std::mem::take(&mut self.lists.recvs));
        for (peer, piece) in &round.sends {
            sends.push((self.membership.ranks[*peer], self.source(piece)?));
        }
        let mut incoming_start = 0;
        for arrival in &round.recvs {
            let window = if arrival.with.is_none() {
                self.target(&arrival.into)?
            } else {
                let start = incoming_start;
                incoming_start += arrival.into.bytes.next_multiple_of(64);
                self.incoming.part(start..start + arrival.into.bytes)
            };
            recvs.push((self.membership.ranks[arrival.peer], window));
        }
        let envelope = Envelope {
            group: self.membership.id,
            number: self.number,
            signature: self.call.signature,
        };
        let mut messages =
            Round { envelope, sends: &sends, recvs: &recvs, done_bytes: 0, arrived: &|_| {} };
        let result = self.endpoint.exchange(self.call.channel, &mut messages, self.call.timeout);
        let done_bytes = messages.done_bytes;
        self.partial_bytes = done_bytes;
        result.map_err(|why| self.failed(why))?;
        let Traffic { sent_bytes, received_bytes, .. } = round.traffic;
        assert_eq!(
            done_bytes,
            sent_bytes + received_bytes,
            "a transport moves what the schedule says"
        );
        for (arrival, (_, arrived)) in round.recvs.iter().zip(&recvs) {
            if let Some((with, order)) = &arrival.with {
                let sources = [arrived.as_source(), self.source(with)?];
                let targets = [self.target(&arrival.into)?];
                let reduction = self.call.reduction;
                let job =
                    Job { reduction, divide_by: None, order, sources: &sources, targets: &targets };
                kernel::reduce(self.endpoint.isa(), self.call.dtype, &job);
            }
        }
        self.lists.sends = reuse(sends);
        self.lists.recvs = reuse(recvs);
        Ok(())
    }

    #[inline]
    fn source(&self, piece: &Piece) -> Result<Source<'a, u8>, CommError> {
        if piece.rank == self.membership.group_rank {
            let range = piece.start..piece.start + piece.bytes;
            return Ok(match piece.area {
                Area::Input(index) => {
                    let start = index * self.call.prepared.input_bytes + piece.start;
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
        if piece.rank == self.membership.group_rank {
            let range = piece.start..piece.start + piece.bytes;
            return Ok(match piece.area {
                Area::Input(_) => unreachable!("a schedule never writes to an input"),
                Area::Output => self.buffers.output.part(range),
                Area::Scratch => self.scratch.part(range),
            });
        }
        self.remote(piece)
    }

    /// A range of a peer's memory. The peer stated the offset, so it is validated before use.
    #[inline]
    fn remote(&self, piece: &Piece) -> Result<Target<'a, u8>, CommError> {
        let shared = self.shared.expect("a schedule with remote accesses runs in shared memory");
        let (number, descriptor) = &self.descriptors[piece.rank];
        // The offsets of another call may be those of memory that the peer uses by now.
        assert_eq!(
            *number, self.number,
            "a schedule waits for a rank before it accesses its memory"
        );
        let base = match piece.area {
            Area::Input(index) => (index as u64)
                .checked_mul(descriptor.input_stride)
                .and_then(|distance| descriptor.input.checked_add(distance)),
            Area::Output => Some(descriptor.output),
            Area::Scratch => Some(descriptor.scratch),
        };
        let peer = self.membership.ranks[piece.rank];
        let start = base.and_then(|base| usize::try_from(base).ok()?.checked_add(piece.start));
        let segment = shared.segment(peer);
        let window = start.and_then(|start| try_target(segment, start, piece.bytes));
        window.ok_or_else(|| {
            let reason = "it published an offset outside its memory".to_owned();
            self.failed(Interruption::Lost { peer, reason })
        })
    }
}

#[cfg(test)]
mod tests;
