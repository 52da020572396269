//! The blocking collectives of a [`Comm`].
//!
//! Arguments are ordinary slices. Peers access an [`ArenaBuffer`](crate::ArenaBuffer), or a part of
//! one, directly; other memory is staged in the arena where the schedule needs it there. Staging
//! costs time and never changes a result.

use std::ops::Range;
use std::time::Duration;

use lockstep_platform::{Source, Target};
use lockstep_schedule::{Algorithm, Op, boundary};

use crate::call_buffers::CallBuffers;
use crate::channel::Channel;
use crate::comm::{Comm, State};
use crate::element::{Element, Reduction};
use crate::engine::Call;
use crate::error::CommError;
use crate::recorder::Entry;
use crate::schedule_cache::ScheduleKey;
use crate::signature::{code, hash};

/// Traffic below which a call takes less than a tick of the recorder's clock, unless it waits.
const SHORT_BYTES: u64 = 64 << 10;

impl Comm {
    /// Replaces `data` on every rank by the reduction of all ranks' `data`.
    pub fn all_reduce<T: Element>(
        &self,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let count = data.len() / self.core.membership.num_inputs;
        self.call_in_place(Op::AllReduce, Some(reduction), count, data)
    }

    /// Puts the reduction of all ranks' `input` into every rank's `output`.
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let count = input.len() / self.core.membership.num_inputs;
        self.call(Op::AllReduce, Some(reduction), count, input, output)
    }

    /// Puts part i of the reduction of all ranks' `input` into rank i's `output`. Lengths of parts
    /// differ by one element at most ([`Comm::part_of`]).
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let count = input.len() / self.core.membership.num_inputs;
        self.call(Op::ReduceScatter, Some(reduction), count, input, output)
    }

    /// Concatenates all ranks' `input` into every rank's `output`.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), CommError> {
        let count = output.len();
        self.call(Op::AllGather, None, count, input, output)
    }

    /// Replaces `data` on every rank by the `data` of `root`, a group rank.
    pub fn broadcast<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), CommError> {
        let count = data.len();
        self.call_in_place(Op::Broadcast { root }, None, count, data)
    }

    /// Replaces `data` on `root` by the reduction of all ranks' `data`; the others keep theirs.
    pub fn reduce<T: Element>(
        &self,
        data: &mut [T],
        root: usize,
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let count = data.len() / self.core.membership.num_inputs;
        self.call_in_place(Op::Reduce { root }, Some(reduction), count, data)
    }

    /// Puts part i of `root`'s `input` into rank i's `output`. Other ranks' `input` is ignored but
    /// must have the same length, so that all agree on the parts.
    pub fn scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<(), CommError> {
        let count = input.len();
        let input = if self.group_rank() == root { input } else { &[] };
        self.call(Op::Scatter { root }, None, count, input, output)
    }

    /// Concatenates all ranks' `input` into `root`'s `output`. Other ranks' `output` is not written
    /// but must have the same length, so that all agree on the parts.
    pub fn gather<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<(), CommError> {
        let count = output.len();
        let output = if self.group_rank() == root { output } else { &mut [] };
        self.call(Op::Gather { root }, None, count, input, output)
    }

    /// Concatenates all ranks' `input`, of any lengths, into every rank's `output`; returns the
    /// length of each rank's part. The ranks exchange the lengths first.
    pub fn all_gather_v<T: Element>(
        &self,
        input: &[T],
        output: &mut Vec<T>,
    ) -> Result<Vec<usize>, CommError> {
        let mut all = vec![0; self.group_size()];
        let any_algorithm = Self { algorithm: None, ..self.clone() };
        any_algorithm.all_gather(&[input.len() as u64], &mut all)?;
        let lengths = self.trusted_lengths::<T>(&all)?;
        self.gather_parts(input, &lengths, output)?;
        Ok(lengths)
    }

    /// [`Comm::all_gather_v`] with lengths that all ranks know.
    pub(crate) fn gather_parts<T: Element>(
        &self,
        input: &[T],
        lengths: &[usize],
        output: &mut Vec<T>,
    ) -> Result<(), CommError> {
        let count = lengths.iter().sum();
        self.make_room("all-gather-v", output, count)?;
        self.run::<T>(Op::AllGather, None, count, lengths, self.apart(input, output))
    }

    /// Resizes a vector to a length that other ranks stated, if memory allows.
    fn make_room<T: Element>(
        &self,
        call: &str,
        output: &mut Vec<T>,
        count: usize,
    ) -> Result<(), CommError> {
        output.clear();
        if output.try_reserve_exact(count).is_err() {
            return Err(self.invalid(call, "the received data does not fit into memory"));
        }
        output.resize(count, T::from_small(0));
        Ok(())
    }

    /// [`Comm::all_gather`] in place: every rank's own part is already at its offset in `data`.
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), CommError> {
        let (own, all) = (self.part_of(data.len(), self.group_rank()), 0..data.len());
        self.call_inside(Op::AllGather, None, data.len(), data, (own, all))
    }

    /// [`Comm::reduce_scatter`] in place: a rank's part of the result replaces that part of `data`;
    /// the rest is unchanged.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let (count, all) = (data.len() / self.core.membership.num_inputs, 0..data.len());
        let own = self.part_of(count, self.group_rank());
        self.call_inside(Op::ReduceScatter, Some(reduction), count, data, (all, own))
    }

    /// [`Comm::scatter`] in place: every rank's part arrives at its offset in `data`; the rest is
    /// unchanged.
    pub fn scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        root: usize,
    ) -> Result<(), CommError> {
        let own = self.part_of(data.len(), self.group_rank());
        let input = if self.group_rank() == root { 0..data.len() } else { 0..0 };
        self.call_inside(Op::Scatter { root }, None, data.len(), data, (input, own))
    }

    /// [`Comm::gather`] in place: every rank's own part is already at its offset in `data`.
    pub fn gather_in_place<T: Element>(
        &self,
        data: &mut [T],
        root: usize,
    ) -> Result<(), CommError> {
        let own = self.part_of(data.len(), self.group_rank());
        let output = if self.group_rank() == root { 0..data.len() } else { 0..0 };
        self.call_inside(Op::Gather { root }, None, data.len(), data, (own, output))
    }

    /// Concatenates part d of every rank's `input` into rank d's `output`.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), CommError> {
        self.call(Op::AllToAll, None, input.len() * self.group_size(), input, output)
    }

    /// All-to-all with parts of any lengths. A rank sends `send_counts[d]` elements to rank d,
    /// taken from its `input` in order; rank d concatenates the parts of all ranks in its `output`.
    /// Returns the number of elements from each rank. The ranks exchange the counts first.
    pub fn all_to_all_v<T: Element>(
        &self,
        input: &[T],
        send_counts: &[usize],
        output: &mut Vec<T>,
    ) -> Result<Vec<usize>, CommError> {
        let n = self.group_size();
        if send_counts.len() != n || send_counts.iter().sum::<usize>() != input.len() {
            let rule = format!("{n} counts that add up to the {} elements", input.len());
            return Err(self.invalid("all-to-all-v", &rule));
        }
        let own: Vec<u64> = send_counts.iter().map(|&count| count as u64).collect();
        let mut all = vec![0; n * n];
        let any_algorithm = Self { algorithm: None, ..self.clone() };
        any_algorithm.all_gather(&own, &mut all)?;
        let lengths = self.trusted_lengths::<T>(&all)?;
        let column = || (0..n).map(|source| lengths[source * n + self.group_rank()]);
        self.make_room("all-to-all-v", output, column().sum())?;
        let buffers = self.apart(input, output);
        self.run::<T>(Op::AllToAll, None, lengths.iter().sum(), &lengths, buffers)?;
        Ok(column().collect())
    }

    /// Copies `input` into `output`, which has the same length. A local operation, here so that it
    /// can run in the background ([`Comm::start_copy`]).
    pub fn copy<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), CommError> {
        if input.len() != output.len() {
            let rule = format!("{} elements do not fit {}", input.len(), output.len());
            return Err(self.invalid("copy", &rule));
        }
        output.copy_from_slice(input);
        Ok(())
    }

    /// Validates lengths that other ranks stated: their sum must fit into memory.
    pub(crate) fn trusted_lengths<T: Element>(
        &self,
        named: &[u64],
    ) -> Result<Vec<usize>, CommError> {
        let total = named.iter().try_fold(0_u64, |total, &len| total.checked_add(len));
        let bytes = total.and_then(|total| total.checked_mul(size_of::<T>() as u64));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(
                self.invalid("parts of unequal lengths", "together they do not fit into memory")
            );
        }
        Ok(named.iter().map(|&len| len as usize).collect())
    }

    /// Blocks until every rank of the group has called it.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.call::<u8>(Op::Barrier, None, 0, &[], &mut [])
    }

    /// Range of a vector of `count` elements that belongs to a group rank.
    pub fn part_of(&self, count: usize, group_rank: usize) -> Range<usize> {
        let at = |index| boundary(count, self.group_size(), index);
        at(group_rank)..at(group_rank + 1)
    }

    /// Whether `algorithm` supports `op` in this group.
    pub fn offers(&self, op: Op, algorithm: Algorithm) -> bool {
        self.lock().schedules.offers(op, algorithm)
    }

    /// The algorithm selected for `op` on a vector of `count` elements, as counted by
    /// [`Layout::even`](lockstep_schedule::Layout::even).
    pub fn choice<T: Element>(&self, op: Op, count: usize) -> Result<Algorithm, CommError> {
        let reduction = op.is_sum().then_some(Reduction::Sum);
        let key = self.schedule_key::<T>(op, reduction, count, &[]);
        let mut state = self.lock();
        let found = state.schedules.find(&key, &[]).map(|cached| cached.algorithm);
        found.map_err(|rule| self.invalid(&op.to_string(), &rule))
    }

    /// Runs a call whose input and output are parts of one vector.
    fn call_inside<T: Element>(
        &self,
        op: Op,
        reduction: Option<Reduction>,
        count: usize,
        data: &mut [T],
        (input, output): (Range<usize>, Range<usize>),
    ) -> Result<(), CommError> {
        let own = self.core.endpoint.shared().map(|shared| shared.own());
        let offset = |part: &[T]| own.and_then(|own| own.offset_of(part));
        let (input_offset, output_offset) =
            (offset(&data[input.clone()]), offset(&data[output.clone()]));
        let whole = Target::of(data);
        let buffers = CallBuffers {
            input: whole.part(input).as_source().cast(),
            output: whole.part(output).cast(),
            input_offset,
            output_offset,
            in_place: false,
        };
        self.run::<T>(op, reduction, count, &[], buffers)
    }

    pub(crate) fn call<T: Element>(
        &self,
        op: Op,
        reduction: Option<Reduction>,
        count: usize,
        input: &[T],
        output: &mut [T],
    ) -> Result<(), CommError> {
        self.run::<T>(op, reduction, count, &[], self.apart(input, output))
    }

    /// Buffers of a call that is not in place.
    fn apart<'a, T: Element>(&self, input: &'a [T], output: &'a mut [T]) -> CallBuffers<'a> {
        let own = self.core.endpoint.shared().map(|shared| shared.own());
        CallBuffers {
            input_offset: own.and_then(|own| own.offset_of(input)),
            output_offset: own.and_then(|own| own.offset_of(output)),
            input: Source::of(input).cast(),
            output: Target::of(output).cast(),
            in_place: false,
        }
    }

    fn call_in_place<T: Element>(
        &self,
        op: Op,
        reduction: Option<Reduction>,
        count: usize,
        data: &mut [T],
    ) -> Result<(), CommError> {
        let own = self.core.endpoint.shared().map(|shared| shared.own());
        let offset = own.and_then(|own| own.offset_of(data));
        let output = Target::of(data).cast();
        let buffers = CallBuffers {
            input: output.as_source(),
            output,
            input_offset: offset,
            output_offset: offset,
            in_place: true,
        };
        self.run::<T>(op, reduction, count, &[], buffers)
    }

    pub(crate) fn run<T: Element>(
        &self,
        op: Op,
        reduction: Option<Reduction>,
        count: usize,
        lengths: &[usize],
        buffers: CallBuffers<'_>,
    ) -> Result<(), CommError> {
        if self.channel == Channel::Caller {
            self.core.calls_in_flight.drain();
        }
        let mut state = self.lock();
        let State { engine, schedules, counters, sequences, failed } = &mut *state;
        if let Some(error) = failed {
            return Err(error.clone());
        }
        if schedules.slowdown.votes_before(engine.next_call()) {
            self.vote_to_remeasure(schedules).inspect_err(|error| *failed = Some(error.clone()))?;
        }
        let is_watched = schedules.slowdown.is_on();
        let key = self.schedule_key::<T>(op, reduction, count, lengths);
        let found = schedules.find(&key, lengths);
        let cached = found.map_err(|rule| self.invalid(&op.to_string(), &rule))?;
        let (prepared, replays, dtype) = (&cached.prepared, &mut cached.replays, T::DTYPE);
        let replay = replays.find(&buffers);
        if replay.is_none() {
            self.check_lengths(op, prepared, &buffers, dtype.bytes())?;
        }
        let reduction = reduction.unwrap_or(Reduction::Sum);
        let (signature, timeout) = (cached.signature, self.timeout);
        let (channel, label) = (self.channel, self.label);
        let (endpoint, membership) = (&self.core.endpoint, &self.core.membership);
        let (group, number) = (membership.id, engine.next_call());
        let entry = Entry { group, channel, number, signature, label };
        let clock = endpoint.world().clock();
        let record =
            (!self.bare).then(|| endpoint.recorder().open_in_group(sequences, entry, clock));
        let (num_long_waits, record) = (endpoint.num_long_waits(), record.as_ref());
        let call =
            Call { prepared, signature, dtype, reduction, timeout, channel, label, replay, record };
        let start = if is_watched { endpoint.world().clock().now() } else { Duration::ZERO };
        // An error is large. Returning the result unmatched would copy it even on success, and
        // the copy would wait for the last stores of the call.
        match engine.run(endpoint, membership, &call, buffers, replays) {
            Ok(()) => {
                if let Some(record) = record {
                    let is_short =
                        prepared.facts.uses_memory && prepared.traffic.bytes() <= SHORT_BYTES;
                    record.end(is_short && endpoint.num_long_waits() == num_long_waits);
                }
                counters.add(code(op), cached.algorithm, engine.moved());
                if is_watched {
                    schedules.record_duration(endpoint.world().clock().since(start));
                }
                Ok(())
            }
            Err(error) => {
                if let Some(record) = record {
                    record.fail(engine.moved().bytes());
                }
                endpoint.dump(&error);
                counters.add_unfinished(code(op), cached.algorithm, engine.moved());
                *failed = Some(error.clone());
                Err(error)
            }
        }
    }

    #[inline]
    pub(crate) fn schedule_key<T: Element>(
        &self,
        op: Op,
        reduction: Option<Reduction>,
        count: usize,
        lengths: &[usize],
    ) -> ScheduleKey {
        let (dtype, lengths) = (T::DTYPE, hash(lengths));
        let (algorithm, canonical) = (self.algorithm, self.canonical);
        ScheduleKey { op, dtype, reduction, count, lengths, algorithm, canonical }
    }

    /// Checks that the caller's slices have the lengths that the operation requires of this rank.
    fn check_lengths(
        &self,
        op: Op,
        prepared: &crate::prepared_schedule::PreparedSchedule,
        buffers: &CallBuffers<'_>,
        element_bytes: usize,
    ) -> Result<(), CommError> {
        let elements = |bytes: usize| bytes / element_bytes;
        let input = prepared.num_inputs * prepared.input_bytes;
        let is_right = |found: usize, needed: usize| {
            if buffers.in_place { found >= needed } else { found == needed }
        };
        if !is_right(buffers.input.len(), input) {
            let (found, needed) = (elements(buffers.input.len()), elements(input));
            let rule = format!("the input has {found} elements and needs {needed}");
            return Err(self.invalid(&op.to_string(), &rule));
        }
        if !is_right(buffers.output.len(), prepared.output_bytes) {
            let (found, needed) = (elements(buffers.output.len()), elements(prepared.output_bytes));
            let rule = format!("the output has {found} elements and needs {needed}");
            return Err(self.invalid(&op.to_string(), &rule));
        }
        Ok(())
    }
}
