//! The training step as plain data: the tasks of one rank, in order, with what they touch.
//!
//! A [`Program`] lists what a rank does in one step: load the batch, pass micro-batches through
//! blocks, exchange activations, gather parameters, reduce gradients, agree, update. It says
//! nothing of time and holds no tensors. One value has several readers: the engine runs it, the
//! planner counts its bytes and plays it with calibrated durations ([`play()`]), [`verify`] proves
//! it, a trace names its tasks.
//!
//! # How an engine runs a program
//! 1. It issues tasks in program order, each to its [`Queue`]. Tasks of one queue run in that
//!    order; queues run side by side.
//! 2. A task starts when the tasks that [`Program::after`] names are done. These dependencies
//!    follow from the buffers that tasks touch ([`Access`]); the [`Builder`] derives them.
//! 3. A task with a [`Task::guard`] runs only if that agreement allows it, on all ranks alike.
//! 4. A group of one rank makes the same calls; their schedules have no instructions.
//!
//! On a CPU the rank's own thread is the compute queue and background threads are the links; on a
//! stream-ordered device queues are streams and dependencies are events.
//!
//! # Example
//! ```
//! use lockstep_schedule::step::{Builder, Contents, Queue, TaskOp, verify};
//!
//! let mut step = Builder::new(0);
//! let batch = step.buffer(Contents::Batch, 64);
//! let params = step.persistent(Contents::Params { bucket: 0 }, 1_000);
//! step.task(TaskOp::LoadBatch, Queue::Host).writes(batch);
//! let task = step.task(TaskOp::Custom { number: 0 }, Queue::Compute);
//! let task = task.takes(batch).updates(params).id();
//! let program = step.finish();
//! assert_eq!(program.after(task).len(), 1, "the task waits for the batch");
//! verify(&[program])?;
//! # Ok::<(), lockstep_schedule::step::InvalidStep>(())
//! ```

mod builder;
mod call;
mod display;
mod play;
mod verify;

pub use builder::{Builder, TaskBuilder};
pub use call::{Call, CommGroup, Lengths};
pub use play::{CallMode, Play, RankPlay, Span, play};
pub use verify::{InvalidStep, StepReport, verify};

use lockstep_mesh::Axis;

/// Index of a task in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// Index of a buffer in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Resource that a task occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Queue {
    /// Arithmetic of the rank's device.
    Compute,
    /// Bulk communication along an axis of the mesh.
    Link(Axis),
    /// The few numbers that steer a run: losses, norms, agreements.
    Control,
    /// Data pipeline and host memory.
    Host,
    /// Checkpoints and offloaded state.
    Disk,
}

/// Pass of one micro-batch through one block of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockPass {
    /// Virtual stage of the rank.
    pub chunk: u32,
    /// Micro-batch, counted on this rank.
    pub microbatch: u32,
    /// Block of the model.
    pub block: u32,
    /// Number of the part: collectives of a tensor-parallel block cut its pass into parts.
    pub part: u32,
}

/// Request to a parameter server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServerCall {
    /// Sets the weights.
    Load,
    /// Pull of the weights for a step.
    Pull,
    /// Pull of embedding rows.
    Rows,
    /// Pull of replicas of other servers' rows.
    RowReplicas,
    /// Store of replicas of other servers' rows.
    StoreRowReplicas,
    /// Push of a gradient.
    Push,
    /// Read of the weights, without a push to follow.
    Read,
    /// Read of the optimizer state.
    State,
}

/// Meaning of a message between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageKind {
    /// Output of a stage, to the next one.
    Activation {
        /// Stage in front of the boundary.
        boundary: u32,
        /// Micro-batch.
        microbatch: u32,
    },
    /// Gradient of a stage's input, to the previous one.
    ActivationGrad {
        /// Stage in front of the boundary.
        boundary: u32,
        /// Micro-batch.
        microbatch: u32,
    },
    /// Gradient of a tied tensor's copy, to the stage of its owner.
    MirrorGrad {
        /// Index of the pair of tensors.
        pair: u32,
    },
    /// Updated tied tensor, to the stage of its copy.
    MirrorParams {
        /// Index of the pair of tensors.
        pair: u32,
    },
    /// Weights of a bucket for a neighbour of a gossip graph.
    Weights {
        /// Bucket.
        bucket: u32,
    },
    /// Push-sum weight for a neighbour of a directed graph.
    PushSumWeight,
    /// Request to a parameter server, by a worker or by its primary.
    Request(ServerCall),
    /// Reply to a request.
    Reply(ServerCall),
    /// Values that follow a request or its reply.
    Values {
        /// Request.
        call: ServerCall,
        /// Number of the message within the request.
        part: u32,
    },
    /// Update of a federated client, to the coordinator.
    ClientUpdate {
        /// Number among the sender's clients.
        client: u32,
        /// 0 for weights, 1 for control variates.
        part: u32,
    },
    /// Message of a strategy that is defined elsewhere.
    Custom {
        /// Number that the strategy gives it.
        number: u32,
    },
}

/// Message between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Message {
    /// Meaning.
    pub kind: MessageKind,
    /// The other rank.
    pub peer: u32,
    /// Number of elements.
    pub len: u64,
    /// Bytes of an element.
    pub element: u32,
}

/// What ranks average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Averaged {
    /// Weight changes of a bucket, over all ranks.
    Bucket(u32),
    /// Weight changes of a bucket, within a group of ranks.
    BucketInGroup(u32),
    /// Weight changes of a fragment of the model.
    Fragment(u32),
    /// A tensor of optimizer state, over all ranks.
    State(u32),
    /// A tensor of optimizer state, within a group of ranks.
    StateInGroup(u32),
}

/// Action of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskOp {
    /// Takes the next batch from the data pipeline.
    LoadBatch,
    /// Forward pass.
    Forward(BlockPass),
    /// Recomputes what the forward pass did not keep.
    Recompute(BlockPass),
    /// Input and weight gradients.
    Backward(BlockPass),
    /// Input gradient only.
    InputGrad(BlockPass),
    /// Weight gradient, deferred.
    WeightGrad(BlockPass),
    /// Collective of a tensor-parallel block, between two parts of its pass.
    TensorCollective,
    /// Copies the output of one stage to the input of the next on one rank.
    CopyActivation {
        /// Virtual stage that receives it.
        chunk: u32,
        /// Micro-batch.
        microbatch: u32,
    },
    /// Drops the activations of a block that has no backward pass.
    ReleaseActivations {
        /// Block.
        block: u32,
        /// Micro-batch.
        microbatch: u32,
    },
    /// Sends a message.
    Send(Message),
    /// Receives a message.
    Recv(Message),
    /// Gathers sharded parameters before their use (ZeRO-3).
    GatherParams {
        /// Bucket.
        bucket: u32,
    },
    /// Drops gathered parameters.
    ReleaseParams {
        /// Bucket.
        bucket: u32,
    },
    /// Rounds or compresses the gradients of a bucket for the wire.
    Encode {
        /// Bucket.
        bucket: u32,
    },
    /// Reduces the gradients of a bucket over the data-parallel ranks.
    Reduce {
        /// Bucket.
        bucket: u32,
    },
    /// Adds received gradients to the sums of a bucket, or widens reduced ones.
    Decode {
        /// Bucket.
        bucket: u32,
    },
    /// Adds the gradient of a tied tensor's copy to its owner's.
    AddMirror {
        /// Index of the pair of tensors.
        pair: u32,
    },
    /// Copies an updated tied tensor over its copy.
    CopyMirror {
        /// Index of the pair of tensors.
        pair: u32,
    },
    /// Gathers the losses of all micro-batches.
    GatherLosses,
    /// Divides the gradients by the loss scale.
    Unscale,
    /// Norm of the gradients that this rank holds.
    GradNorm,
    /// Agrees on the norm, and whether the update happens.
    Agree,
    /// Updates the parameters that this rank owns.
    Update {
        /// Bucket.
        bucket: u32,
    },
    /// Gathers updated parameters (ZeRO-1 and 2).
    GatherUpdated {
        /// Bucket.
        bucket: u32,
    },
    /// Averages weights, their changes or optimizer state over a group of ranks.
    Average(Averaged),
    /// Applies an outer optimizer to the change of weights that all ranks have made alike.
    OuterUpdate {
        /// Bucket.
        bucket: u32,
    },
    /// Adds reduced gradients to the momentum that compression keeps.
    TrackMomentum,
    /// Reduces gradients within a group of ranks, ahead of an exchange between groups.
    ReduceInGroup,
    /// Broadcasts the result of an exchange between groups within each of them.
    BroadcastInGroup,
    /// Divides mixed weights by the push-sum weight.
    Debias,
    /// Gathers what a strategy measures of itself in a step.
    Statistics,
    /// Exchanges compressed gradients.
    Exchange {
        /// Number of the call within the exchange.
        part: u32,
    },
    /// Mixes weights with those of neighbours on a graph.
    Mix {
        /// Bucket, or 0 where all are mixed at once.
        bucket: u32,
    },
    /// Waits for all ranks of a group.
    Barrier,
    /// Scales the gradients to the largest norm allowed.
    Clip,
    /// Drops gradients that were pushed or reported.
    ReleaseGrads,
    /// Broadcasts a rank's weights to its group, or their version.
    Broadcast {
        /// Number of the call.
        part: u32,
    },
    /// Exchanges losses or other reports of a step within a group, beside the model's bytes.
    Report {
        /// Number of the call.
        part: u32,
    },
    /// Steps a parameter server's shard by the gradients that workers have pushed.
    ServerUpdate,
    /// Agrees on the ranks whose gradients count in the step.
    Cutoff,
    /// Gives a federated client its turn in the rank's model.
    LoadClient {
        /// Number among the rank's clients.
        client: u32,
    },
    /// Steps a federated client's weights.
    ClientStep {
        /// Number among the rank's clients.
        client: u32,
    },
    /// Aggregates the updates of federated clients.
    Aggregate {
        /// 0 for weights, 1 for control variates.
        part: u32,
    },
    /// Reads weights that other threads change meanwhile.
    ReadShared,
    /// Adds this thread's step to weights that other threads change meanwhile.
    AddToShared,
    /// Task of a strategy that is defined elsewhere.
    Custom {
        /// Number that the strategy gives it.
        number: u32,
    },
}

impl TaskOp {
    /// Pass through a block, if it is one.
    pub const fn block_pass(&self) -> Option<BlockPass> {
        match *self {
            Self::Forward(pass)
            | Self::Recompute(pass)
            | Self::Backward(pass)
            | Self::InputGrad(pass)
            | Self::WeightGrad(pass) => Some(pass),
            _ => None,
        }
    }

    /// Whether a synchronization strategy runs the task.
    pub const fn is_of_strategy(&self) -> bool {
        match self {
            Self::Average(_)
            | Self::OuterUpdate { .. }
            | Self::TrackMomentum
            | Self::ReduceInGroup
            | Self::BroadcastInGroup
            | Self::Exchange { .. }
            | Self::Mix { .. }
            | Self::Debias
            | Self::Statistics
            | Self::Custom { .. } => true,
            Self::Send(message) | Self::Recv(message) => matches!(
                message.kind,
                MessageKind::Weights { .. }
                    | MessageKind::PushSumWeight
                    | MessageKind::Custom { .. }
            ),
            _ => false,
        }
    }

    /// Micro-batch that the task serves, if it serves one.
    pub const fn microbatch(&self) -> Option<u32> {
        match *self {
            Self::CopyActivation { microbatch, .. }
            | Self::ReleaseActivations { microbatch, .. } => Some(microbatch),
            Self::Send(Message { kind, .. }) | Self::Recv(Message { kind, .. }) => match kind {
                MessageKind::Activation { microbatch, .. }
                | MessageKind::ActivationGrad { microbatch, .. } => Some(microbatch),
                _ => None,
            },
            _ => match self.block_pass() {
                Some(pass) => Some(pass.microbatch),
                None => None,
            },
        }
    }
}

/// Use of a buffer by a task.
///
/// A buffer is empty or full. Transient buffers are empty between steps, persistent ones full. A
/// task that is missing or out of order finds or leaves a buffer in the wrong state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Reads a full buffer.
    Read,
    /// Changes a full buffer in place.
    Update,
    /// Fills an empty buffer.
    Write,
    /// Adds to a buffer; fills it if it is empty.
    Add,
    /// Reads a full buffer for the last time and leaves it empty.
    Take,
}

/// Use of one buffer by a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Buffer.
    pub buffer: BufferId,
    /// Use.
    pub mode: Use,
}

/// Contents of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Contents {
    /// Tokens of the batch.
    Batch,
    /// Input of a block, by slot of the live micro-batches.
    Stream {
        /// Block.
        block: u32,
        /// Slot.
        slot: u32,
    },
    /// Output of a stage's last block, by slot.
    Output {
        /// Virtual stage.
        chunk: u32,
        /// Slot.
        slot: u32,
    },
    /// Saved tensors of a block, by slot.
    Saved {
        /// Block.
        block: u32,
        /// Slot.
        slot: u32,
    },
    /// Recomputed tensors of the current block.
    Recomputed,
    /// Values that an input-gradient pass keeps for the weight gradient, by slot.
    Deferred {
        /// Block.
        block: u32,
        /// Slot.
        slot: u32,
    },
    /// Gradient of the stream.
    StreamGrad,
    /// Partial result of a tensor-parallel block.
    Partial {
        /// Number of the collective that completes it, within the pass.
        number: u32,
    },
    /// Parameters of a bucket: whole, or this rank's shard (ZeRO-3).
    Params {
        /// Bucket.
        bucket: u32,
    },
    /// Updated parameters of a bucket that other ranks do not have yet.
    Updated {
        /// Bucket.
        bucket: u32,
    },
    /// Gathered parameters (ZeRO-3).
    Window {
        /// Number of the window.
        window: u32,
    },
    /// Gradient sums of a bucket.
    Grads {
        /// Bucket.
        bucket: u32,
    },
    /// Leaf of a bucket that is being filled (ZeRO-2 and 3).
    Leaf {
        /// Number of the pool buffer, or bucket where each has its own.
        number: u32,
    },
    /// Pieces received from other ranks (ZeRO-2 and 3).
    Pieces {
        /// Number of the buffer.
        number: u32,
    },
    /// Gradients in the format of the wire.
    Encoded {
        /// Number of the buffer, or bucket where each has its own.
        number: u32,
    },
    /// Gradient of a tied tensor's copy.
    MirrorGrad {
        /// Index of the pair of tensors.
        pair: u32,
    },
    /// Mark of a tied tensor's copy that is older than its owner.
    StaleCopy {
        /// Index of the pair of tensors.
        pair: u32,
    },
    /// Loss of a micro-batch.
    Loss {
        /// Micro-batch.
        microbatch: u32,
    },
    /// Losses of all ranks.
    Losses,
    /// Gradients divided by the loss scale, in place.
    Unscaled,
    /// Norm of this rank's gradients.
    Norm,
    /// Message of a neighbour.
    Received {
        /// Rank of the neighbour.
        peer: u32,
        /// Bucket.
        bucket: u32,
    },
    /// Weight of push-sum on a directed graph.
    PushSumWeight,
    /// Mark of mixed weights that are not divided by the push-sum weight yet.
    Biased,
    /// Mark of the momentum that compression keeps.
    Momentum,
    /// What a strategy measures of itself.
    Statistics,
    /// Mark of reduced gradients that the other ranks of the group do not have yet.
    GroupSums,
    /// State of the optimizer for a bucket.
    OptimizerState {
        /// Bucket.
        bucket: u32,
    },
    /// Version of a shard that this worker has pulled and not yet pushed to.
    Version {
        /// Shard.
        shard: u32,
    },
    /// Weights of a federated client.
    ClientWeights {
        /// Number among the rank's clients.
        client: u32,
    },
    /// Weights of the federated coordinator, or of all threads.
    GlobalWeights,
    /// Buffer of a strategy that is defined elsewhere.
    Custom {
        /// Number that the strategy gives it.
        number: u32,
    },
}

/// Buffer of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Contents.
    pub contents: Contents,
    /// Number of elements.
    pub len: u64,
    /// Whether it is full between steps.
    pub is_persistent: bool,
}

/// One task of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Action.
    pub op: TaskOp,
    /// Resource that it occupies.
    pub queue: Queue,
    /// Collective call that it makes, as an index into [`Program::calls`].
    pub call: Option<u32>,
    /// Agreement that decides whether it runs.
    pub guard: Option<TaskId>,
    after: std::ops::Range<u32>,
    accesses: std::ops::Range<u32>,
}

/// Step of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Program {
    /// Rank that runs it.
    pub rank: usize,
    /// Tasks, in the order in which they are issued.
    pub tasks: Vec<Task>,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Groups of ranks in which it communicates.
    pub groups: Vec<CommGroup>,
    /// Collective calls.
    pub calls: Vec<Call>,
    /// Number of each of its micro-batches within the global batch.
    pub microbatches: Vec<u32>,
    after: Vec<TaskId>,
    accesses: Vec<Access>,
}

impl Program {
    /// Tasks of other queues that must be done before a task starts.
    pub fn after(&self, task: TaskId) -> &[TaskId] {
        let range = &self.tasks[task.0 as usize].after;
        &self.after[range.start as usize..range.end as usize]
    }

    /// Buffers that a task touches.
    pub fn accesses(&self, task: TaskId) -> &[Access] {
        let range = &self.tasks[task.0 as usize].accesses;
        &self.accesses[range.start as usize..range.end as usize]
    }

    /// Collective call of a task, with its group.
    pub fn call(&self, task: &Task) -> Option<(&Call, &CommGroup)> {
        let call = &self.calls[task.call? as usize];
        Some((call, &self.groups[call.group as usize]))
    }

    /// Contents of the buffers that a task uses in these modes.
    pub fn contents<'a>(
        &'a self,
        task: TaskId,
        modes: &'a [Use],
    ) -> impl Iterator<Item = Contents> + 'a {
        let accesses = self.accesses(task).iter();
        let accesses = accesses.filter(move |access| modes.contains(&access.mode));
        accesses.map(|access| self.buffers[access.buffer.0 as usize].contents)
    }

    /// Collectives between the parts of a pass that begins with `first`: every second task, as long
    /// as it is one.
    pub fn collectives_of(&self, first: TaskId) -> impl Iterator<Item = &Task> {
        let tasks = self.tasks[first.0 as usize + 1..].iter();
        tasks.step_by(2).take_while(|task| task.op == TaskOp::TensorCollective)
    }

    /// Last part of a pass that begins with `first`.
    pub fn last_part(&self, first: TaskId) -> TaskId {
        TaskId(first.0 + 2 * self.collectives_of(first).count() as u32)
    }

    /// First task that satisfies a condition.
    pub fn position(&self, is_it: impl Fn(&TaskOp) -> bool) -> Option<TaskId> {
        self.iter().find(|(_, task)| is_it(&task.op)).map(|(id, _)| id)
    }

    /// Tasks with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (TaskId, &Task)> {
        (0_u32..).map(TaskId).zip(&self.tasks)
    }

    /// The program without one task, as if it had been forgotten; for tests of the verifier.
    pub fn without(&self, task: TaskId) -> Self {
        let mut builder = Builder::new(self.rank);
        builder.adopt(self);
        for (id, old) in self.iter().filter(|(id, _)| *id != task) {
            let guard = old.guard.filter(|guard| *guard != task);
            let guard = guard.map(|guard| TaskId(guard.0 - u32::from(guard.0 > task.0)));
            builder.repeat(old, self.accesses(id), guard);
        }
        builder.finish()
    }
}
