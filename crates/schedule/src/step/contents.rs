//! Contents of the buffers that tasks use.

use super::op::Normed;

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
    /// Mark of gradients that are directions of the update.
    Direction {
        /// Bucket.
        bucket: u32,
    },
    /// Sums of squares of this rank's values, by tensor.
    NormSums {
        /// Values.
        of: Normed,
    },
    /// Norms of whole tensors.
    TensorNorms {
        /// Values.
        of: Normed,
    },
    /// Gathered piece of a matrix.
    MatrixPiece {
        /// Number among the pieces that this rank holds.
        piece: u32,
    },
    /// Gathered whole matrix.
    Matrix,
    /// Mark of a tensor whose gradients were turned into the direction of its step.
    WholeDirection {
        /// Number of the tensor.
        matrix: u32,
    },
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
    /// Measurements of a strategy.
    Statistics,
    /// Gradients of a bucket, summed within a group, that the other groups do not have yet.
    GroupSums {
        /// Bucket.
        bucket: u32,
    },
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
    /// Mark of this thread's copy of the weights, which is older than those that threads share.
    StaleWeights,
    /// Mark of a round whose clients with an update are known.
    Arrivals,
    /// Buffer of a strategy that is defined elsewhere.
    Custom {
        /// Number that the strategy gives it.
        number: u32,
    },
}
