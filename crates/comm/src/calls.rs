//! The collective operations of a [`Comm`].
//!
//! Arguments are ordinary slices. Where one of them, or a part of it, lies in an
//! [`ArenaBuffer`](crate::ArenaBuffer), peers work on it directly; any other memory is copied to
//! the arena first where the schedule needs it there. That costs time and never changes a result.

use lockstep_platform::{Source, Target};
use lockstep_schedule::{Algorithm, Op, boundary};

use crate::comm::{Comm, State};
use crate::element::{Element, Reduction};
use crate::engine::{Buffers, Call};
use crate::error::CommError;
use crate::node::Lane;
use crate::planner::Wanted;
use crate::signature::{code, hash};

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
        let input = if self.position() == root { input } else { &[] };
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
        let output = if self.position() == root { output } else { &mut [] };
        self.call(Op::Gather { root }, None, count, input, output)
    }

    /// Puts part d of every rank's `input` into rank d's `output`, one after the other.
    pub fn all_to_all<T: Element>(&self, input: &[T], output: &mut [T]) -> Result<(), CommError> {
        self.call(Op::AllToAll, None, input.len() * self.num_members(), input, output)
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
        let n = self.num_members();
        if send_counts.len() != n || send_counts.iter().sum::<usize>() != input.len() {
            let rule = format!("{n} counts that add up to the {} elements", input.len());
            return Err(self.invalid("all-to-all-v", &rule));
        }
        let own: Vec<u64> = send_counts.iter().map(|&count| count as u64).collect();
        let mut all = vec![0; n * n];
        let any_algorithm = Self { algorithm: None, ..self.clone() };
        any_algorithm.all_gather(&own, &mut all)?;
        let lengths: Vec<usize> = all.iter().map(|&count| count as usize).collect();
        let column = || (0..n).map(|source| lengths[source * n + self.position()]);
        output.clear();
        output.resize(column().sum(), T::from_small(0));
        let buffers = self.apart(input, output);
        self.run::<T>(Op::AllToAll, None, lengths.iter().sum(), &lengths, buffers)?;
        Ok(column().collect())
    }

    /// No rank leaves before every rank has come.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.call::<u8>(Op::Barrier, None, 0, &[], &mut [])
    }

    /// The elements of a vector of `count` that belong to the member at `position`.
    pub fn part_of(&self, count: usize, position: usize) -> std::ops::Range<usize> {
        let at = |index| boundary(count, self.num_members(), index);
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
            self.core.in_flight.drain();
        }
        let mut state = self.lock();
        let State { engine, planner, counters, failed } = &mut *state;
        if let Some(error) = failed {
            return Err(error.clone());
        }
        let wanted = self.wanted::<T>(op, reduction, count, lengths);
        let found = planner.find(&wanted, lengths);
        let ready = found.map_err(|rule| self.invalid(&op.to_string(), &rule))?;
        let plan = &ready.plan;
        let dtype = T::DTYPE;
        self.check_lengths(op, plan, &buffers, dtype.bytes())?;
        let reduction = reduction.unwrap_or(Reduction::Sum);
        let (signature, timeout, lane) = (ready.signature, self.timeout, self.lane);
        let call = Call { plan, signature, dtype, reduction, timeout, lane };
        let result = engine.run(&self.core.node, &self.core.team, &call, buffers);
        match &result {
            Ok(()) => counters.add(code(op), &plan.traffic),
            Err(error) => *failed = Some(error.clone()),
        }
        result
    }

    #[inline]
    fn wanted<T: Element>(
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
