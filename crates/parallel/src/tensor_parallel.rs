//! Tensor and sequence parallelism (Shoeybi et al. 2019; Korthikanti et al. 2022).
//!
//! The model is described in shards ([`lockstep_model::tensor_shards`]) and calls
//! [`TensorCollectives`] to complete their partial sums; here that is a group of ranks. Each layer
//! and pass has two all-reduces: behind the row-parallel product of each half in forward, and
//! behind the input gradient of the column-parallel product in backward. With sequence parallelism
//! each becomes a reduce-scatter behind and an all-gather in front, which move the same bytes, and
//! activations between the halves are divided among the ranks. Sums follow the tree over ranks,
//! which is the upper part of the tree over shards: the bits equal those of one rank that holds all
//! shards.
//!
//! These calls block the computation, so the ranks of such a group belong on the fastest links.
//! Nothing overlaps, and all of their time is exposed communication.

use lockstep_comm::{Comm, CommError, Counters, Label, Reduction};
use lockstep_model::{Blueprint, TensorCollectives};
use lockstep_optim::Slot;
use lockstep_platform::World;
use lockstep_schedule::Op;
use lockstep_schedule::step::{Program, TaskId};
use lockstep_tensor::device::{Device, View, ViewMut};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Collectives of a pass through a block, at most; more would allocate.
const MOST_CALLS: usize = 16;

/// A rank's end of the tensor-parallel group.
pub struct TensorParallel {
    comm: Comm,
    world: World,
    exposed: Duration,
    /// First failure; nothing is sent after it.
    failed: Option<CommError>,
    /// Current step, for error reports.
    step: u64,
    /// Calls of the current pass, to compare with the program's.
    calls: Vec<(Op, usize)>,
    /// Accelerator whose values go by way of `staging`.
    accelerator: Option<Arc<dyn Device>>,
    staging: Vec<f32>,
}

impl TensorParallel {
    /// For the ranks of `comm`, each of which holds as many shards, in rank order.
    pub fn new(comm: &Comm, world: World, accelerator: Option<Arc<dyn Device>>) -> Self {
        let comm = comm.canonical();
        let (calls, staging) = (Vec::with_capacity(MOST_CALLS), Vec::new());
        let exposed = Duration::ZERO;
        Self { comm, world, exposed, failed: None, step: 0, calls, accelerator, staging }
    }

    /// The tensor-parallel group.
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Sets the current step.
    pub fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Begins a pass through a block.
    pub fn begin_pass(&mut self) {
        self.calls.clear();
    }

    /// Checks that a pass has made the calls that the program lists between its parts.
    pub fn assert_calls(&self, program: &Program, first: TaskId) {
        let calls = program.collectives_of(first).map(|task| {
            let (call, _) = program.call(task).expect("it is a call");
            (call.op, call.lengths.count())
        });
        assert!(self.calls.iter().copied().eq(calls), "blocks declare their collectives");
    }

    /// Failure since the last call, if any. Results of blocks after it are invalid.
    pub fn check(&mut self) -> Result<(), CommError> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Calls in this group, and bytes sent and received.
    pub fn counters(&self) -> Counters {
        self.comm.counters()
    }

    /// Exposed communication time since [`Self::take_exposed`].
    pub const fn exposed(&self) -> Duration {
        self.exposed
    }

    /// Exposed communication time since the last call.
    pub fn take_exposed(&mut self) -> Duration {
        std::mem::take(&mut self.exposed)
    }

    /// Runs a call on values of the device.
    fn call(
        &mut self,
        op: Op,
        mut values: ViewMut<'_>,
        run: impl FnOnce(&Comm, &mut [f32]) -> Result<(), CommError>,
    ) {
        if self.failed.is_some() || self.comm.group_size() == 1 {
            return;
        }
        self.calls.push((op, values.len()));
        let start = self.world.clock().now();
        let comm = self.comm.about(Label::step(self.step));
        let result = match &self.accelerator {
            None => values.into_slice().map_err(CommError::from).and_then(|it| run(&comm, it)),
            Some(device) => {
                self.staging.resize(values.len(), 0.0);
                let staging = &mut self.staging[..];
                let copied = device.copy(values.as_view(), ViewMut::of(staging));
                let called = copied.map_err(CommError::from).and_then(|()| run(&comm, staging));
                called.and_then(|()| Ok(device.copy(View::of(staging), values.reborrow())?))
            }
        };
        self.failed = result.err();
        self.exposed += self.world.clock().since(start);
    }
}

/// Slots that tensor-parallel rank `tp_rank` measures, given the `slots` of the rank with
/// `blueprint`: the same places in its own pieces. Rank 0 measures parameters that are not sharded.
pub fn slots_of_tp_rank(blueprint: &Blueprint, tp_rank: usize, mut slots: Vec<Slot>) -> Vec<Slot> {
    let num_local = blueprint.shards.num_local();
    let pieces: BTreeMap<&str, (usize, usize)> =
        blueprint.params().map(|(_, p)| (p.name.as_str(), (p.piece.num, p.len()))).collect();
    slots.retain_mut(|slot| {
        let (num_pieces, len) = pieces[slot.name.as_str()];
        if num_pieces == 1 {
            return tp_rank == 0;
        }
        let in_piece = slot.first - slot.piece * len;
        slot.piece = tp_rank * num_local + slot.piece % num_local;
        slot.first = slot.piece * len + in_piece;
        true
    });
    slots
}

impl TensorCollectives for TensorParallel {
    fn all_reduce(&mut self, values: ViewMut<'_>) {
        let run = |comm: &Comm, values: &mut [f32]| comm.all_reduce(values, Reduction::Sum);
        self.call(Op::AllReduce, values, run);
    }

    fn all_reduce_max(&mut self, values: ViewMut<'_>) {
        let run = |comm: &Comm, values: &mut [f32]| comm.all_reduce(values, Reduction::Max);
        self.call(Op::AllReduce, values, run);
    }

    fn all_gather(&mut self, values: ViewMut<'_>) {
        self.call(Op::AllGather, values, Comm::all_gather_in_place);
    }

    fn reduce_scatter(&mut self, values: ViewMut<'_>) {
        let run =
            |comm: &Comm, values: &mut [f32]| comm.reduce_scatter_in_place(values, Reduction::Sum);
        self.call(Op::ReduceScatter, values, run);
    }

    fn has_failed(&self) -> bool {
        self.failed.is_some()
    }
}
