//! The collective operations of a [`Comm`].
//!
//! Arguments are ordinary slices. Where one of them, or a part of it, lies in an
//! [`ArenaBuffer`](crate::ArenaBuffer), peers work on it directly; any other memory is copied to
//! the arena first where the schedule needs it there. That costs time and never changes a result.

use std::ops::Range;
use std::time::Duration;

use lockstep_platform::{Source, Target};
use lockstep_schedule::{Algorithm, Op, boundary};

use crate::comm::{Comm, State};
use crate::element::{Element, Reduction};
use crate::engine::{Buffers, Call};
use crate::error::CommError;
use crate::node::Lane;
use crate::planner::Wanted;
use crate::recorder::Entry;
use crate::signature::{code, hash};

/// A call that moves so little takes less than a tick of the recorder's clock, unless it waits.
const SHORT_BYTES: u64 = 64 << 10;

impl Comm {
    /// Replaces `data` on every rank by the reduction of all ranks' `data`.
    pub fn all_reduce<T: Element>(
        &self,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let count = data.len() / self.core.team.num_inputs;
        self.call_in_place(Op::AllReduce, Some(reduction), count, data)
    }

    /// Puts the reduction of all ranks' `input` into every rank's `output`.
    pub fn all_reduce_into<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let count = input.len() / self.core.team.num_inputs;
        self.call(Op::AllReduce, Some(reduction), count, input, output)
    }

    /// Puts part i of the reduction of all ranks' `input` into rank i's `output`. Parts are even;
    /// where that is not possible they differ by one element, see [`Comm::part_of`].
    pub fn reduce_scatter<T: Element>(
        &self,
        input: &[T],
        output: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let count = input.len() / self.core.team.num_inputs;
        self.call(Op::ReduceScatter, Some(reduction), count, input, output)
    }

    /// Puts all ranks' `input`, one after the other, into every rank's `output`.
    pub fn all_gather<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), CommError> {
        let count = output.len();
        self.call(Op::AllGather, None, count, input, output)
    }

    /// Replaces `data` on every rank by the `data` of `root`, a position in the group.
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
        let count = data.len() / self.core.team.num_inputs;
        self.call_in_place(Op::Reduce { root }, Some(reduction), count, data)
    }

    /// Puts part i of `root`'s `input` into rank i's `output`. On other ranks `input` is not looked
    /// at but must have the same length, so that all agree on the parts.
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

    /// Puts all ranks' `input`, one after the other, into `root`'s `output`. On other ranks
    /// `output` is not touched but must have the same length, so that all agree on the parts.
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

    /// Puts all ranks' `input`, which may have different lengths, one after the other into every
    /// rank's `output`; how much comes from whom is returned. The ranks tell each other first.
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

    /// The same where all ranks know how much comes from whom.
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

    /// Makes a vector as long as the other ranks say it must be, if that is possible.
    fn make_room<T: Element>(
        &self,
        call: &str,
        output: &mut Vec<T>,
        count: usize,
    ) -> Result<(), CommError> {
        output.clear();
        if output.try_reserve_exact(count).is_err() {
            return Err(self.invalid(call, "what arrives does not fit into memory"));
        }
        output.resize(count, T::from_small(0));
        Ok(())
    }

    /// Like [`Comm::all_gather`], where every rank's own part lies in its place in `data` already.
    pub fn all_gather_in_place<T: Element>(&self, data: &mut [T]) -> Result<(), CommError> {
        let (own, all) = (self.part_of(data.len(), self.group_rank()), 0..data.len());
        self.call_inside(Op::AllGather, None, data.len(), data, (own, all))
    }

    /// Like [`Comm::reduce_scatter`], where a rank's part of the result replaces that part of
    /// `data`; the rest stays as it is.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        reduction: Reduction,
    ) -> Result<(), CommError> {
        let (count, all) = (data.len() / self.core.team.num_inputs, 0..data.len());
        let own = self.part_of(count, self.group_rank());
        self.call_inside(Op::ReduceScatter, Some(reduction), count, data, (all, own))
    }

    /// Like [`Comm::scatter`], where every rank's part arrives in its place in `data`; the rest
    /// stays as it is.
    pub fn scatter_in_place<T: Element>(
        &self,
        data: &mut [T],
        root: usize,
    ) -> Result<(), CommError> {
        let own = self.part_of(data.len(), self.group_rank());
        let input = if self.group_rank() == root { 0..data.len() } else { 0..0 };
        self.call_inside(Op::Scatter { root }, None, data.len(), data, (input, own))
    }

    /// Like [`Comm::gather`], where every rank's own part lies in its place in `data` already.
    pub fn gather_in_place<T: Element>(
        &self,
        data: &mut [T],
        root: usize,
    ) -> Result<(), CommError> {
        let own = self.part_of(data.len(), self.group_rank());
        let output = if self.group_rank() == root { 0..data.len() } else { 0..0 };
        self.call_inside(Op::Gather { root }, None, data.len(), data, (own, output))
    }

    /// Puts part d of every rank's `input` into rank d's `output`, one after the other.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), CommError> {
        self.call(Op::AllToAll, None, input.len() * self.group_size(), input, output)
    }

    /// Puts what every rank has for rank d into rank d's `output`, one after the other. A rank
    /// sends `send_counts[d]` elements to rank d, taken from its `input` in order; how many arrive
    /// from whom is returned. The ranks tell each other the counts first.
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

    /// Copies `input` into `output`, which has the same length. Nobody else takes part; it is here
    /// so that it can be [started](Comm::start_copy) and left to itself.
    pub fn copy<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), CommError> {
        if input.len() != output.len() {
            let rule = format!("{} elements do not fit {}", input.len(), output.len());
            return Err(self.invalid("copy", &rule));
        }
        output.copy_from_slice(input);
        Ok(())
    }

    /// Lengths that other ranks named, if a vector can be that long at all.
    pub(crate) fn trusted_lengths<T: Element>(
        &self,
        named: &[u64],
    ) -> Result<Vec<usize>, CommError> {
        let total = named.iter().try_fold(0_u64, |total, &len| total.checked_add(len));
        let bytes = total.and_then(|total| total.checked_mul(size_of::<T>() as u64));
        if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
            return Err(self.invalid("uneven parts", "together they do not fit into memory"));
        }
        Ok(named.iter().map(|&len| len as usize).collect())
    }

    /// No rank leaves before every rank has come.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.call::<u8>(Op::Barrier, None, 0, &[], &mut [])
    }

    /// The elements of a vector of `count` that belong to the member at `position`.
    pub fn part_of(&self, count: usize, position: usize) -> Range<usize> {
        let at = |index| boundary(count, self.group_size(), index);
        at(position)..at(position + 1)
    }

    /// Whether `algorithm` can carry out `op` in this group.
    pub fn offers(&self, op: Op, algorithm: Algorithm) -> bool {
        self.lock().planner.offers(op, algorithm)
    }

    /// The algorithm that carries out `op` on a vector of `count` elements; see
    /// [`Layout::even`](lockstep_schedule::Layout::even) for how each operation counts.
    pub fn choice<T: Element>(&self, op: Op, count: usize) -> Result<Algorithm, CommError> {
        let reduction = op.is_sum().then_some(Reduction::Sum);
        let wanted = self.wanted::<T>(op, reduction, count, &[]);
        let mut state = self.lock();
        let found = state.planner.find(&wanted, &[]).map(|ready| ready.algorithm);
        found.map_err(|rule| self.invalid(&op.to_string(), &rule))
    }

    /// A call whose input and output are parts of one vector.
    fn call_inside<T: Element>(
        &self,
        op: Op,
        reduction: Option<Reduction>,
        count: usize,
        data: &mut [T],
        (input, output): (Range<usize>, Range<usize>),
    ) -> Result<(), CommError> {
        let own = self.core.node.shared().map(|shared| shared.own());
        let offset = |part: &[T]| own.and_then(|own| own.offset_of(part));
        let (input_offset, output_offset) =
            (offset(&data[input.clone()]), offset(&data[output.clone()]));
        let whole = Target::of(data);
        let buffers = Buffers {
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

    /// Buffers that are not the same.
    fn apart<'a, T: Element>(&self, input: &'a [T], output: &'a mut [T]) -> Buffers<'a> {
        let own = self.core.node.shared().map(|shared| shared.own());
        Buffers {
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
        let own = self.core.node.shared().map(|shared| shared.own());
        let offset = own.and_then(|own| own.offset_of(data));
        let output = Target::of(data).cast();
        let buffers = Buffers {
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
        buffers: Buffers<'_>,
    ) -> Result<(), CommError> {
        if self.lane == Lane::Caller {
            self.core.calls_in_flight.drain();
        }
        let mut state = self.lock();
        let State { engine, planner, counters, numbers, failed } = &mut *state;
        if let Some(error) = failed {
            return Err(error.clone());
        }
        if planner.watch.asks_before(engine.next_call()) {
            self.ask(planner).inspect_err(|error| *failed = Some(error.clone()))?;
        }
        let is_watched = planner.watch.is_on();
        let wanted = self.wanted::<T>(op, reduction, count, lengths);
        let found = planner.find(&wanted, lengths);
        let ready = found.map_err(|rule| self.invalid(&op.to_string(), &rule))?;
        let (plan, notebook, dtype) = (&ready.plan, &mut ready.notebook, T::DTYPE);
        let notes = notebook.find(&buffers);
        if notes.is_none() {
            self.check_lengths(op, plan, &buffers, dtype.bytes())?;
        }
        let reduction = reduction.unwrap_or(Reduction::Sum);
        let (signature, timeout) = (ready.signature, self.timeout);
        let (lane, label) = (self.lane, self.label);
        let (node, team) = (&self.core.node, &self.core.team);
        let (group, number) = (team.id, engine.next_call());
        let entry = Entry { group, lane, number, signature, label };
        let clock = node.world().clock();
        let flight = (!self.bare).then(|| node.recorder().flight_in(numbers, entry, clock));
        let (num_long_waits, flight) = (node.num_long_waits(), flight.as_ref());
        let call = Call { plan, signature, dtype, reduction, timeout, lane, label, notes, flight };
        let start = if is_watched { node.world().clock().now() } else { Duration::ZERO };
        // An error is large. Handing on the result as it is would copy all of it even if there is
        // none, and that waits until the last stores of the call are through.
        match engine.run(node, team, &call, buffers, notebook) {
            Ok(()) => {
                if let Some(flight) = flight {
                    let is_short = plan.facts.uses_memory && plan.traffic.bytes() <= SHORT_BYTES;
                    flight.end(is_short && node.num_long_waits() == num_long_waits);
                }
                counters.add(code(op), engine.moved());
                if is_watched {
                    planner.note(node.world().clock().since(start));
                }
                Ok(())
            }
            Err(error) => {
                if let Some(flight) = flight {
                    flight.fail(engine.moved().bytes());
                }
                node.dump(&error);
                counters.add_unfinished(code(op), engine.moved());
                *failed = Some(error.clone());
                Err(error)
            }
        }
    }

    #[inline]
    pub(crate) fn wanted<T: Element>(
        &self,
        op: Op,
        reduction: Option<Reduction>,
        count: usize,
        lengths: &[usize],
    ) -> Wanted {
        let (dtype, lengths) = (T::DTYPE, hash(lengths));
        let (algorithm, canonical) = (self.algorithm, self.canonical);
        Wanted { op, dtype, reduction, count, lengths, algorithm, canonical }
    }

    /// Whether the caller's slices have the lengths that the operation gives this rank.
    fn check_lengths(
        &self,
        op: Op,
        plan: &crate::plan::Plan,
        buffers: &Buffers<'_>,
        element_bytes: usize,
    ) -> Result<(), CommError> {
        let given = |bytes: usize| bytes / element_bytes;
        let input = plan.num_inputs * plan.input_bytes;
        let is_right = |found: usize, wanted: usize| {
            if buffers.in_place { found >= wanted } else { found == wanted }
        };
        if !is_right(buffers.input.len(), input) {
            let (found, wanted) = (given(buffers.input.len()), given(input));
            let rule = format!("the input has {found} elements and needs {wanted}");
            return Err(self.invalid(&op.to_string(), &rule));
        }
        if !is_right(buffers.output.len(), plan.output_bytes) {
            let (found, wanted) = (given(buffers.output.len()), given(plan.output_bytes));
            let rule = format!("the output has {found} elements and needs {wanted}");
            return Err(self.invalid(&op.to_string(), &rule));
        }
        Ok(())
    }
}
