//! One micro-batch through a range of blocks: forward, and backward from the saved activations.
//!
//! The state of a micro-batch between the two passes is a value, [`Activations`]: the stream at
//! every block boundary, and the saved tensors of each block. A rank with all blocks needs one of
//! them for all its micro-batches; a pipeline stage ([`crate::pipeline`]) keeps as many as its
//! schedule has micro-batches in flight. All memory is allocated when the value is made.
//!
//! A block's gradients depend only on the micro-batch and the parameters; a [`Store`] decides where
//! they are added.

mod offload;

use crate::recompute::RecomputePlan;
use lockstep_comm::CommError;
use lockstep_model::{
    Block, Blueprint, Context, Grads, MicrobatchShape, Mode, Recompute, Saved, SavedLen,
};
use lockstep_schedule::step::{Program, TaskId};
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, Dtype, DualBuffer, Result as DeviceResult, View, ViewMut};
use offload::{HostCopy, OffloadLen, OffloadRing, RingLen};
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

/// Recomputation and offload of what blocks save.
#[derive(Clone, Copy, Debug)]
pub struct ActivationPlan {
    /// Recomputation.
    pub recompute: RecomputePlan,
    /// Whether the values of layers are kept in host memory between the passes.
    pub offload: bool,
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
    /// that are tokens or the loss are empty, and so are those that are offloaded.
    streams: Vec<DualBuffer>,
    /// Saved tensors of each block; empty where they are offloaded.
    saved: Vec<SavedBuffers>,
    /// Offloaded values of each block, if any.
    offloaded: Vec<Option<HostCopy>>,
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

/// Saved tensors that a micro-batch does not keep on the device, shared by all micro-batches of a
/// rank.
#[derive(Debug)]
pub struct SharedBuffers {
    /// Those that the current block recomputes.
    recomputed: SavedBuffers,
    /// Those that are on their way to the host or back.
    ring: OffloadRing,
}

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

/// The larger of two lengths in each part.
fn larger(one: SavedLen, other: SavedLen) -> SavedLen {
    SavedLen { kept: one.kept.max(other.kept), rebuilt: one.rebuilt.max(other.rebuilt) }
}

/// Lengths of [`Activations`], and of the [`SharedBuffers`] they need.
struct Lengths {
    streams: Vec<usize>,
    saved: Vec<SavedLen>,
    offloaded: Vec<Option<OffloadLen>>,
    recomputed: SavedLen,
}

impl Lengths {
    fn new(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        plan: ActivationPlan,
        run: Range<usize>,
    ) -> Self {
        let blocks = &blueprint.blocks[run.clone()];
        let len = |width: usize| blueprint.stream_len(shape, width);
        let mut streams: Vec<_> =
            blocks.iter().map(|block| len(block.io().input_width())).collect();
        streams.push(blocks.last().map_or(0, |last| len(last.io().output_width())));
        let mut recomputed = SavedLen::default();
        let (mut saved, mut offloaded) = (Vec::new(), Vec::new());
        for (at, (index, block)) in run.zip(blocks).enumerate() {
            let all = block.saved_len(shape);
            let own = match plan.recompute.of_block(index, &**block) {
                Recompute::None => all,
                Recompute::Selective => SavedLen { kept: all.kept, rebuilt: 0 },
                Recompute::Full => SavedLen::default(),
            };
            recomputed.kept = recomputed.kept.max(all.kept - own.kept);
            recomputed.rebuilt = recomputed.rebuilt.max(all.rebuilt - own.rebuilt);
            if plan.offload && block.io().is_layer() {
                // Links and copies between stages use the first stream.
                let stream = if at > 0 { std::mem::take(&mut streams[at]) } else { 0 };
                saved.push(SavedLen::default());
                offloaded.push(Some(OffloadLen { stream, saved: own }));
            } else {
                saved.push(own);
                offloaded.push(None);
            }
        }
        Self { streams, saved, offloaded, recomputed }
    }

    /// Elements of a micro-batch in the memory of the blocks' device.
    fn on_device(&self) -> usize {
        let saved: usize = self.saved.iter().map(|len| len.kept + len.rebuilt).sum();
        saved + self.streams.iter().sum::<usize>()
    }

    /// Offloaded elements of a micro-batch.
    fn on_host(&self) -> usize {
        self.offloaded.iter().flatten().map(|len| len.total()).sum()
    }
}

impl SharedBuffers {
    /// Shared buffers for a rank's block ranges.
    pub fn new(
        accelerator: Accelerator<'_>,
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        plan: ActivationPlan,
        runs: &[Range<usize>],
    ) -> DeviceResult<Self> {
        let (recomputed, ring) = Self::planned(blueprint, shape, plan, runs);
        let recomputed = SavedBuffers::new(accelerator, recomputed)?;
        Ok(Self { recomputed, ring: OffloadRing::new(accelerator, ring)? })
    }

    /// Number of elements that [`Self::new`] would allocate.
    pub fn planned_len(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        plan: ActivationPlan,
        runs: &[Range<usize>],
    ) -> usize {
        let (SavedLen { kept, rebuilt }, ring) = Self::planned(blueprint, shape, plan, runs);
        kept + rebuilt + ring.total()
    }

    fn planned(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        plan: ActivationPlan,
        runs: &[Range<usize>],
    ) -> (SavedLen, RingLen) {
        let mut most = (SavedLen::default(), RingLen::default());
        for run in runs {
            let of_run = Lengths::new(blueprint, shape, plan, run.clone());
            let ring = RingLen::new(&of_run.offloaded);
            most = (larger(most.0, of_run.recomputed), most.1.max(ring));
        }
        most
    }

    /// Begins consecutive passes of a micro-batch, whose first block in the order of the model is
    /// `first`.
    pub fn begin_section(&mut self, first: usize) {
        self.ring.begin_section(first);
    }

    /// Ends them: what is offloaded has left or arrived.
    pub fn finish_section(&mut self, device: &dyn Device) -> DeviceResult<()> {
        self.ring.finish_section(device)
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        self.recomputed.len() + self.ring.len()
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
        plan: ActivationPlan,
        run: Range<usize>,
    ) -> DeviceResult<Self> {
        let lengths = Lengths::new(blueprint, shape, plan, run.clone());
        let streams = lengths.streams.into_iter().map(|len| DualBuffer::zeros(accelerator, len));
        let saved = lengths.saved.into_iter().map(|len| SavedBuffers::new(accelerator, len));
        let host_copy = |len: Option<_>| len.map(|len| HostCopy::new(accelerator, len)).transpose();
        let offloaded = lengths.offloaded.into_iter().map(host_copy);
        Ok(Self {
            recompute: plan.recompute,
            first: run.start,
            rows: blueprint.stream_rows(shape),
            dtype: blueprint.activations,
            streams: streams.collect::<DeviceResult<_>>()?,
            saved: saved.collect::<DeviceResult<_>>()?,
            offloaded: offloaded.collect::<DeviceResult<_>>()?,
        })
    }

    /// Numbers of elements that [`Self::new`] would allocate: where blocks compute, and for
    /// offload.
    pub fn planned_len(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        plan: ActivationPlan,
        run: Range<usize>,
    ) -> [usize; 2] {
        let lengths = Lengths::new(blueprint, shape, plan, run);
        [lengths.on_device(), lengths.on_host()]
    }

    /// Number of elements of each block alone: its input and its saved tensors, without the shared
    /// buffers of recomputed blocks.
    pub fn planned_by_block(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
    ) -> Vec<usize> {
        let all = 0..blueprint.blocks.len();
        let plan = ActivationPlan { recompute, offload: false };
        let Lengths { streams, saved, .. } = Lengths::new(blueprint, shape, plan, all);
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
    ) -> DeviceResult<([&'a mut DualBuffer; 2], Saved<'a>, Recompute)> {
        let at = index - self.first;
        let policy = self.recompute.of_block(index, block);
        let SharedBuffers { recomputed, ring } = shared;
        let place_of = |more: usize| {
            let offloaded = self.offloaded.get(at + more).and_then(Option::as_ref);
            if offloaded.is_some_and(HostCopy::has_stream) {
                Place::Ring(ring.place_of_stream(index + more))
            } else {
                Place::Own(at + more)
            }
        };
        let places = [place_of(0), place_of(1)];
        let (ring_streams, ring_saved) = ring.buffers(index);
        let own = match ring_saved {
            Some(in_ring) if self.offloaded[at].is_some() => in_ring,
            _ => &mut self.saved[at],
        };
        let saved = saved_of(own, recomputed, policy, block.saved_len(shape))?;
        Ok((two_streams(&mut self.streams, ring_streams, places), saved, policy))
    }

    /// Brings back what the passes through a block, backward, need of the host.
    fn load(
        &self,
        index: usize,
        device: &dyn Device,
        shared: &mut SharedBuffers,
    ) -> DeviceResult<()> {
        let at = index - self.first;
        let of = |at: usize| self.offloaded[at].as_ref();
        shared.ring.load(device, index, [at.checked_sub(1).and_then(of), of(at)])
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
        let at = index - self.first;
        if self.offloaded[at].is_some() {
            shared.ring.reclaim(ctx.device, index)?;
        }
        let (streams, saved, _) = self.of_block(index, block, ctx.microbatch.shape, shared)?;
        let [input, output] = streams;
        let input = input.view()?.cast(dtype).range(0..rows * io.input_width());
        let output = output.view_mut()?.cast(dtype).range(0..rows * io.output_width());
        block.forward(ctx, params, input, output, saved)?;
        match &mut self.offloaded[at] {
            Some(to) if ctx.mode != Mode::Evaluate => shared.ring.store(ctx.device, index, to),
            _ => Ok(()),
        }
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
        self.load(index, ctx.device, shared)?;
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
        self.load(index, ctx.device, shared)?;
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

    /// Losses of the rows, where the last block ends in the loss: the end of what it keeps.
    pub fn row_losses(&self, device: &dyn Device, num_rows: usize) -> DeviceResult<Vec<f32>> {
        let kept = &self.saved.last().expect("there are blocks").kept;
        let mut losses = vec![0.0; num_rows];
        let rows = kept.len() - num_rows..kept.len();
        device.copy(kept.view()?.range(rows), ViewMut::of(&mut losses))?;
        Ok(losses)
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        let saved: usize = self.saved.iter().map(SavedBuffers::len).sum();
        let offloaded: usize = self.offloaded.iter().flatten().map(HostCopy::len).sum();
        saved + offloaded + self.streams.iter().map(DualBuffer::len).sum::<usize>()
    }
}

/// Buffer of a stream: one of the micro-batch's own, or one of the ring.
#[derive(Clone, Copy)]
enum Place {
    Own(usize),
    Ring(usize),
}

fn two_streams<'a>(
    own: &'a mut [DualBuffer],
    ring: &'a mut [DualBuffer],
    places: [Place; 2],
) -> [&'a mut DualBuffer; 2] {
    let two = match places {
        [Place::Own(input), Place::Own(output)] => own.get_disjoint_mut([input, output]),
        [Place::Ring(input), Place::Ring(output)] => ring.get_disjoint_mut([input, output]),
        [Place::Own(input), Place::Ring(output)] => return [&mut own[input], &mut ring[output]],
        [Place::Ring(input), Place::Own(output)] => return [&mut ring[input], &mut own[output]],
    };
    two.expect("a block has two streams")
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
