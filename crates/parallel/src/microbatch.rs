//! One micro-batch through a range of blocks: forward, and backward from the saved activations.
//!
//! The state of a micro-batch between the two passes is a value, [`Activations`]: the stream at
//! every block boundary, and the saved tensors of each block. A rank with all blocks needs one of
//! them for all its micro-batches; a pipeline stage ([`crate::pipeline`]) keeps as many as its
//! schedule has micro-batches in flight. All memory is allocated when the value is made.
//!
//! A block's gradients depend only on the micro-batch and the parameters; a [`Store`] decides where
//! they are added.

use crate::recompute::RecomputePlan;
use lockstep_comm::CommError;
use lockstep_model::{
    Block, Blueprint, Context, Grads, MicrobatchShape, Mode, Recompute, Saved, SavedLen,
};
use lockstep_schedule::step::{Program, TaskId};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, Dtype, DualBuffer, Result as DeviceResult, View};
use std::ops::Range;
use std::sync::Arc;

/// Accelerator of a rank; `None` where the CPU runs the blocks.
pub(crate) type Accelerator<'a> = Option<&'a Arc<dyn Device>>;

/// Source of parameters and destination of gradients.
///
/// The step program decides when parameters are gathered and gradients reduced; a store does it.
pub trait Store {
    /// Waits until a block's parameters are here.
    fn arrive(&mut self, block: usize) -> Result<(), CommError>;

    /// Parameters of a block that has arrived.
    fn params(&self, block: usize) -> DeviceResult<View<'_>>;

    /// Parameters of a block, and the buffer to which the micro-batch adds the gradients of the
    /// trained ones; `leaf` is the number of that buffer where gradients are sharded.
    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
        leaf: Option<u32>,
    ) -> DeviceResult<(View<'_>, Grads<'_>)>;

    /// First block with gradients; backward ends there.
    fn first_trained(&self) -> usize;

    /// Marks a block's gradients as added.
    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError>;

    /// Gathers or releases parameters, or encodes, reduces or decodes gradients.
    fn communicate(&mut self, cpu: &Cpu, program: &Program, task: TaskId) -> Result<(), CommError>;
}

/// Activations of a micro-batch between forward and backward through a range of blocks; evaluation
/// uses them too.
#[derive(Debug)]
pub struct Activations {
    recompute: RecomputePlan,
    /// First block.
    first: usize,
    /// Rows of every stream, and the type of their elements.
    rows: usize,
    dtype: Dtype,
    /// Stream i is the input of the i-th block; the last is the output of the last block. Streams
    /// that are tokens or the loss are empty.
    streams: Vec<DualBuffer>,
    /// Saved tensors of each block.
    saved: Vec<SavedBuffers>,
}

/// Deferred weight gradients (zero-bubble pipelines, Qi et al. 2024): what each block's
/// input-gradient pass keeps for its weight-gradient pass.
#[derive(Debug)]
pub struct DeferredWeightGrads(Vec<DualBuffer>);

/// Part of a backward pass to run.
#[derive(Debug)]
pub enum BackwardPass<'a> {
    /// Input and weight gradients.
    Full,
    /// Input gradients only; keeps what the weight gradients need.
    InputGrad(&'a mut DeferredWeightGrads),
    /// Weight gradients, after the input gradients.
    WeightGrad(&'a mut DeferredWeightGrads),
}

/// Saved tensors of the current block that it does not keep, shared by all micro-batches of a rank.
#[derive(Debug)]
pub struct SharedBuffers(SavedBuffers);

#[derive(Debug)]
struct SavedBuffers {
    kept: DualBuffer,
    rebuilt: DualBuffer,
}

impl SavedBuffers {
    fn new(accelerator: Accelerator<'_>, len: SavedLen) -> DeviceResult<Self> {
        let zeros = |len| DualBuffer::zeros(accelerator, len);
        Ok(Self { kept: zeros(len.kept)?, rebuilt: zeros(len.rebuilt)? })
    }

    fn len(&self) -> usize {
        self.kept.len() + self.rebuilt.len()
    }
}

/// Lengths of [`Activations`], and of the [`SharedBuffers`] they need.
struct Lengths {
    streams: Vec<usize>,
    saved: Vec<SavedLen>,
    shared: SavedLen,
}

impl Lengths {
    fn new(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
        run: Range<usize>,
    ) -> Self {
        let blocks = &blueprint.blocks[run.clone()];
        let len = |width: usize| blueprint.stream_len(shape, width);
        let mut streams: Vec<_> =
            blocks.iter().map(|block| len(block.io().input_width())).collect();
        streams.push(blocks.last().map_or(0, |last| len(last.io().output_width())));
        let mut shared = SavedLen::default();
        let mut saved = Vec::new();
        for (index, block) in run.zip(blocks) {
            let all = block.saved_len(shape);
            let own = match recompute.of_block(index, &**block) {
                Recompute::None => all,
                Recompute::Selective => SavedLen { kept: all.kept, rebuilt: 0 },
                Recompute::Full => SavedLen::default(),
            };
            shared.kept = shared.kept.max(all.kept - own.kept);
            shared.rebuilt = shared.rebuilt.max(all.rebuilt - own.rebuilt);
            saved.push(own);
        }
        Self { streams, saved, shared }
    }
}

impl SharedBuffers {
    /// Shared buffers for a rank's block ranges.
    pub fn new(
        accelerator: Accelerator<'_>,
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
        runs: &[Range<usize>],
    ) -> DeviceResult<Self> {
        let len = Self::planned(blueprint, shape, recompute, runs);
        SavedBuffers::new(accelerator, len).map(Self)
    }

    /// Number of elements that [`Self::new`] would allocate.
    pub fn planned_len(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
        runs: &[Range<usize>],
    ) -> usize {
        let SavedLen { kept, rebuilt } = Self::planned(blueprint, shape, recompute, runs);
        kept + rebuilt
    }

    fn planned(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
        runs: &[Range<usize>],
    ) -> SavedLen {
        let of_run =
            |run: &Range<usize>| Lengths::new(blueprint, shape, recompute, run.clone()).shared;
        runs.iter().map(of_run).fold(SavedLen::default(), |most, len| SavedLen {
            kept: most.kept.max(len.kept),
            rebuilt: most.rebuilt.max(len.rebuilt),
        })
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        self.0.len()
    }
}

impl DeferredWeightGrads {
    /// Memory for micro-batches of one shape through some blocks of a model.
    pub fn new(
        accelerator: Accelerator<'_>,
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        run: Range<usize>,
    ) -> DeviceResult<Self> {
        let lens = blueprint.blocks[run].iter().map(|block| block.deferred_len(shape));
        lens.map(|len| DualBuffer::zeros(accelerator, len)).collect::<DeviceResult<_>>().map(Self)
    }

    /// Number of elements that [`Self::new`] would allocate.
    pub fn planned_len(blueprint: &Blueprint, shape: MicrobatchShape, run: Range<usize>) -> usize {
        blueprint.blocks[run].iter().map(|block| block.deferred_len(shape)).sum()
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        self.0.iter().map(DualBuffer::len).sum()
    }
}

impl Activations {
    /// Memory for micro-batches of one shape through some blocks of a model.
    pub fn new(
        accelerator: Accelerator<'_>,
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
        run: Range<usize>,
    ) -> DeviceResult<Self> {
        let lengths = Lengths::new(blueprint, shape, recompute, run.clone());
        let streams = lengths.streams.into_iter().map(|len| DualBuffer::zeros(accelerator, len));
        let saved = lengths.saved.into_iter().map(|len| SavedBuffers::new(accelerator, len));
        Ok(Self {
            recompute,
            first: run.start,
            rows: blueprint.stream_rows(shape),
            dtype: blueprint.activations,
            streams: streams.collect::<DeviceResult<_>>()?,
            saved: saved.collect::<DeviceResult<_>>()?,
        })
    }

    /// Number of elements that [`Self::new`] would allocate.
    pub fn planned_len(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
        run: Range<usize>,
    ) -> usize {
        let Lengths { streams, saved, .. } = Lengths::new(blueprint, shape, recompute, run);
        let saved: usize = saved.iter().map(|len| len.kept + len.rebuilt).sum();
        saved + streams.iter().sum::<usize>()
    }

    /// Number of elements of each block alone: its input and its saved tensors, without the shared
    /// buffers of recomputed blocks.
    pub fn planned_by_block(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
    ) -> Vec<usize> {
        let all = 0..blueprint.blocks.len();
        let Lengths { streams, saved, .. } = Lengths::new(blueprint, shape, recompute, all);
        streams.iter().zip(&saved).map(|(input, own)| input + own.kept + own.rebuilt).collect()
    }

    /// Blocks of these activations.
    pub fn run(&self) -> Range<usize> {
        self.first..self.first + self.saved.len()
    }

    /// Input buffer of the first block; empty where that reads tokens.
    pub fn input_mut(&mut self) -> &mut DualBuffer {
        &mut self.streams[0]
    }

    /// Output of the last block; empty where that is the loss.
    pub fn output(&self) -> &DualBuffer {
        &self.streams[self.saved.len()]
    }

    /// Input and output of a block, its saved tensors, and how it is recomputed.
    fn of_block<'a>(
        &'a mut self,
        index: usize,
        block: &dyn Block,
        shape: MicrobatchShape,
        shared: &'a mut SharedBuffers,
    ) -> DeviceResult<(&'a mut [DualBuffer], Saved<'a>, Recompute)> {
        let at = index - self.first;
        let policy = self.recompute.of_block(index, block);
        let saved = saved_of(&mut self.saved[at], &mut shared.0, policy, block.saved_len(shape))?;
        Ok((&mut self.streams[at..at + 2], saved, policy))
    }

    /// Runs the micro-batch forward through a block. If the context's collectives have failed, here
    /// as in the passes below, the result is undefined; their owner reports the error.
    pub fn forward(
        &mut self,
        index: usize,
        block: &dyn Block,
        params: View<'_>,
        ctx: &mut Context<'_>,
        shared: &mut SharedBuffers,
    ) -> DeviceResult<()> {
        let (rows, dtype, io) = (self.rows, self.dtype, block.io());
        let (streams, saved, _) = self.of_block(index, block, ctx.microbatch.shape, shared)?;
        let [input, output] = streams else { unreachable!("a block has two streams") };
        let input = input.view()?.cast(dtype).range(0..rows * io.input_width());
        let output = output.view_mut()?.cast(dtype).range(0..rows * io.output_width());
        block.forward(ctx, params, input, output, saved)
    }

    /// Recomputes what the forward pass through a block did not keep.
    pub fn recompute(
        &mut self,
        index: usize,
        block: &dyn Block,
        params: View<'_>,
        ctx: &mut Context<'_>,
        shared: &mut SharedBuffers,
    ) -> DeviceResult<()> {
        let (rows, dtype) = (self.rows, self.dtype);
        let (streams, saved, policy) = self.of_block(index, block, ctx.microbatch.shape, shared)?;
        let input = streams[0].view()?.cast(dtype).range(0..rows * block.io().input_width());
        block.recompute(ctx, params, input, saved, policy)
    }

    /// Runs the micro-batch backward through a block, or one half of it. `d_stream` holds the
    /// gradient of the block's output (undefined where that is the loss) and ends as the gradient
    /// of its input; the weight-gradient pass leaves it unchanged.
    pub fn backward(
        &mut self,
        pass: &mut BackwardPass<'_>,
        index: usize,
        block: &dyn Block,
        (params, grads): (View<'_>, Grads<'_>),
        ctx: &mut Context<'_>,
        shared: &mut SharedBuffers,
        d_stream: &mut DualBuffer,
    ) -> DeviceResult<()> {
        assert_ne!(ctx.mode, Mode::Evaluate, "evaluation has no backward");
        let grads = if block.sets_gradients() { grads } else { grads.zeroed(ctx.device)? };
        let (at, rows, dtype) = (index - self.first, self.rows, self.dtype);
        let (streams, saved, _) = self.of_block(index, block, ctx.microbatch.shape, shared)?;
        let input = streams[0].view()?.cast(dtype).range(0..rows * block.io().input_width());
        let d_stream = d_stream.view_mut()?.cast(dtype).range(0..rows * block.io().max_width());
        match pass {
            BackwardPass::Full => block.backward(ctx, params, input, saved, d_stream, grads),
            BackwardPass::InputGrad(DeferredWeightGrads(deferred)) => {
                let deferred = deferred[at].view_mut()?;
                block.backward_inputs(ctx, params, input, saved, d_stream, deferred)
            }
            BackwardPass::WeightGrad(DeferredWeightGrads(deferred)) => {
                let deferred = deferred[at].view_mut()?;
                block.backward_weights(ctx, params, input, saved, deferred, grads)
            }
        }
    }

    /// Saved tensors of the last block; one that ends in the loss saves its logits first.
    pub fn last_saved(&self) -> &[f32] {
        self.saved.last().map_or(&[], |saved| &*saved.kept)
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        let saved: usize = self.saved.iter().map(SavedBuffers::len).sum();
        saved + self.streams.iter().map(DualBuffer::len).sum::<usize>()
    }
}

/// A block's saved tensors: its own where it keeps them, shared where it recomputes.
fn saved_of<'a>(
    own: &'a mut SavedBuffers,
    shared: &'a mut SavedBuffers,
    policy: Recompute,
    len: SavedLen,
) -> DeviceResult<Saved<'a>> {
    let (kept, rebuilt) = match policy {
        Recompute::None => (&mut own.kept, &mut own.rebuilt),
        Recompute::Selective => (&mut own.kept, &mut shared.rebuilt),
        Recompute::Full => (&mut shared.kept, &mut shared.rebuilt),
    };
    Ok(Saved {
        kept: kept.view_mut()?.range(0..len.kept),
        rebuilt: rebuilt.view_mut()?.range(0..len.rebuilt),
    })
}
