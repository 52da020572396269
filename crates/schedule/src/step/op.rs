//! Actions of tasks, and messages between ranks.

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
    /// Pull of one part of the weights, by its number, after the pull.
    PullPart(u32),
    /// Pull of embedding rows.
    Rows,
    /// Pull of replicas of other servers' rows.
    RowReplicas,
    /// Store of replicas of other servers' rows.
    StoreRowReplicas,
    /// Push of a gradient.
    Push,
    /// Push of one part of the gradient, by its number, before the push.
    PushPart(u32),
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

/// Object of an average.
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

/// Values whose norms an update rule needs by tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Normed {
    /// Parameters before the update.
    Params,
    /// Gradients, or the directions that take their place.
    Steps,
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
    /// Turns the gradients that this rank owns into directions of the update.
    Direction {
        /// Bucket.
        bucket: u32,
    },
    /// Sums the squares of the values that this rank owns, by tensor.
    TensorNorms(Normed),
    /// Gathers the sums of all ranks.
    GatherNorms(Normed),
    /// Gathers a piece of a matrix from the data-parallel ranks that own parts of it.
    GatherMatrix {
        /// Number among the tensors of the rank's pipeline stage that are updated whole.
        matrix: u32,
        /// Number among the pieces that this rank holds.
        piece: u32,
    },
    /// Gathers the pieces of a matrix from the tensor-parallel ranks.
    GatherPieces {
        /// Number among the tensors of the rank's pipeline stage that are updated whole.
        matrix: u32,
    },
    /// Orthogonalises the direction of a whole matrix.
    Orthogonalize {
        /// Number among the tensors of the rank's pipeline stage that are updated whole.
        matrix: u32,
    },
    /// Updates the factored second moments of a whole tensor and turns its gradients into the
    /// direction of the step.
    FactorMoments {
        /// Number among the tensors of the rank's pipeline stage that are updated whole.
        matrix: u32,
    },
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
    ReduceInGroup {
        /// Bucket.
        bucket: u32,
    },
    /// Broadcasts the result of an exchange between groups within each of them.
    BroadcastInGroup {
        /// Bucket.
        bucket: u32,
    },
    /// Divides mixed weights by the push-sum weight.
    Debias,
    /// Gathers what a strategy measures of itself in a step.
    Statistics,
    /// Exchanges compressed gradients.
    Exchange {
        /// Bucket.
        bucket: u32,
        /// Number of the call within the bucket's exchange.
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

    /// Whether it changes parameters or optimizer state, or prepares that: only an agreement allows
    /// it.
    pub const fn is_of_update(&self) -> bool {
        matches!(
            self,
            Self::Direction { .. }
                | Self::TensorNorms(_)
                | Self::GatherNorms(_)
                | Self::GatherMatrix { .. }
                | Self::GatherPieces { .. }
                | Self::Orthogonalize { .. }
                | Self::FactorMoments { .. }
                | Self::Update { .. }
                | Self::GatherUpdated { .. }
        )
    }

    /// Whether a synchronization strategy runs the task.
    pub const fn is_of_strategy(&self) -> bool {
        match self {
            Self::Average(_)
            | Self::OuterUpdate { .. }
            | Self::TrackMomentum
            | Self::ReduceInGroup { .. }
            | Self::BroadcastInGroup { .. }
            | Self::Exchange { .. }
            | Self::Mix { .. }
            | Self::Debias
            | Self::Statistics
            | Self::Clip
            | Self::ReleaseGrads
            | Self::Broadcast { .. }
            | Self::Report { .. }
            | Self::LoadClient { .. }
            | Self::ClientStep { .. }
            | Self::Aggregate { .. }
            | Self::ReadShared
            | Self::AddToShared
            | Self::Custom { .. } => true,
            Self::Send(message) | Self::Recv(message) => !matches!(
                message.kind,
                MessageKind::Activation { .. }
                    | MessageKind::ActivationGrad { .. }
                    | MessageKind::MirrorGrad { .. }
                    | MessageKind::MirrorParams { .. }
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
