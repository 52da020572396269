//! One lane through all blocks: forward, and backward from what forward saved.
//!
//! What a lane leaves behind between the two is a value, [`Activations`]: the stream at every
//! boundary between blocks, and what each block saved. One worker needs one of them and uses it for
//! lane after lane; a pipeline stage keeps as many as its schedule has lanes in flight. All memory
//! is allocated when the value is made.
//!
//! A block's gradients depend on the lane, its parameters and nothing else; where they are added
//! is the business of a [`GradientSink`].

use lockstep_model::{
    Block, BlockIo, Blueprint, Context, LaneShape, Mode, Recompute, Saved, SavedLen,
};
use lockstep_tensor::Cpu;

/// Where gradients of blocks go.
pub trait GradientSink {
    /// The buffer that the lane adds its gradients of this block to.
    fn buffer(&mut self, cpu: &Cpu, block: usize) -> &mut [f32];

    /// Says that they are added.
    fn finish(&mut self, cpu: &Cpu, block: usize);
}

/// What a lane leaves between forward and backward, and what evaluation writes into.
#[derive(Debug)]
pub struct Activations {
    recompute: Recompute,
    /// Stream i is the input of block i; the last one is the output of the last block. Streams
    /// that are tokens or the loss have no elements.
    streams: Vec<Vec<f32>>,
    /// What each block saved and keeps.
    saved: Vec<SavedBuffers>,
    /// Holds, for the block at work, what it does not keep.
    shared: SavedBuffers,
}

#[derive(Debug)]
struct SavedBuffers {
    kept: Vec<f32>,
    rebuilt: Vec<f32>,
}

impl SavedBuffers {
    fn new(len: SavedLen) -> Self {
        Self { kept: vec![0.0; len.kept], rebuilt: vec![0.0; len.rebuilt] }
    }
}

/// How long the parts of [`Activations`] are.
struct Lengths {
    streams: Vec<usize>,
    saved: Vec<SavedLen>,
    shared: SavedLen,
}

impl Lengths {
    fn new(blueprint: &Blueprint, shape: LaneShape, recompute: Recompute) -> Self {
        let blocks = &blueprint.blocks;
        let stream = |is_there: bool| if is_there { shape.rows() * blueprint.width } else { 0 };
        let mut streams: Vec<_> =
            blocks.iter().map(|block| stream(block.io() != BlockIo::TokensToStream)).collect();
        streams.push(stream(blocks.last().is_some_and(|b| b.io() != BlockIo::StreamToLoss)));
        let mut shared = SavedLen::default();
        let mut saved = Vec::new();
        for block in blocks {
            let all = block.saved_len(shape);
            let own = match recompute_of(&**block, recompute) {
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

impl Activations {
    /// Memory for lanes of one shape through the blocks of a model.
    pub fn new(blueprint: &Blueprint, shape: LaneShape, recompute: Recompute) -> Self {
        let lengths = Lengths::new(blueprint, shape, recompute);
        Self {
            recompute,
            streams: lengths.streams.into_iter().map(|len| vec![0.0; len]).collect(),
            saved: lengths.saved.into_iter().map(SavedBuffers::new).collect(),
            shared: SavedBuffers::new(lengths.shared),
        }
    }

    /// Number of elements that [`Self::new`] would allocate.
    pub fn planned_len(blueprint: &Blueprint, shape: LaneShape, recompute: Recompute) -> usize {
        let Lengths { streams, saved, shared } = Lengths::new(blueprint, shape, recompute);
        let saved: usize = saved.iter().chain([&shared]).map(|len| len.kept + len.rebuilt).sum();
        saved + streams.iter().sum::<usize>()
    }

    /// Runs the lane forward and returns the sum of its token losses.
    pub fn forward<P: AsRef<[f32]>>(
        &mut self,
        blocks: &[Box<dyn Block>],
        params: &[P],
        ctx: &mut Context<'_>,
    ) -> f64 {
        let mut loss = 0.0;
        for (index, block) in blocks.iter().enumerate() {
            let (inputs, outputs) = self.streams.split_at_mut(index + 1);
            let policy = recompute_of(&**block, self.recompute);
            let len = block.saved_len(ctx.lane.shape);
            let saved = saved_of(&mut self.saved[index], &mut self.shared, policy, len);
            let params = params[index].as_ref();
            loss += block.forward(ctx, params, &inputs[index], &mut outputs[0], saved);
        }
        loss
    }

    /// Runs the lane backward. `d_stream` holds the gradient of the last block's output (of no
    /// meaning where that is the loss) and ends as the gradient of the first block's input.
    pub fn backward<P: AsRef<[f32]>>(
        &mut self,
        blocks: &[Box<dyn Block>],
        params: &[P],
        ctx: &mut Context<'_>,
        d_stream: &mut [f32],
        sink: &mut impl GradientSink,
    ) {
        assert_ne!(ctx.mode, Mode::Evaluate, "evaluation has no backward");
        for (index, block) in blocks.iter().enumerate().rev() {
            let input = &self.streams[index];
            let policy = recompute_of(&**block, self.recompute);
            let len = block.saved_len(ctx.lane.shape);
            let mut saved = saved_of(&mut self.saved[index], &mut self.shared, policy, len);
            let params = params[index].as_ref();
            block.recompute(ctx, params, input, saved.reborrow(), policy);
            let grads = sink.buffer(ctx.cpu, index);
            block.backward(ctx, params, input, saved, d_stream, grads);
            sink.finish(ctx.cpu, index);
        }
    }

    /// What block number `index` keeps; a block that ends in the loss keeps its logits first.
    pub fn kept(&self, index: usize) -> &[f32] {
        &self.saved[index].kept
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        let buffers = self.saved.iter().chain([&self.shared]);
        let saved: usize = buffers.map(|b| b.kept.len() + b.rebuilt.len()).sum();
        saved + self.streams.iter().map(Vec::len).sum::<usize>()
    }
}

/// The first block saves nothing and the last one's backward follows its forward at once, so only
/// what lies between is worth computing again.
fn recompute_of(block: &dyn Block, policy: Recompute) -> Recompute {
    match block.io() {
        BlockIo::StreamToStream => policy,
        BlockIo::TokensToStream | BlockIo::StreamToLoss => Recompute::None,
    }
}

/// A block's saved memory: its own where it keeps, shared where it recomputes.
fn saved_of<'a>(
    own: &'a mut SavedBuffers,
    shared: &'a mut SavedBuffers,
    policy: Recompute,
    len: SavedLen,
) -> Saved<'a> {
    let (kept, rebuilt) = match policy {
        Recompute::None => (&mut own.kept, &mut own.rebuilt),
        Recompute::Selective => (&mut own.kept, &mut shared.rebuilt),
        Recompute::Full => (&mut shared.kept, &mut shared.rebuilt),
    };
    Saved { kept: &mut kept[..len.kept], rebuilt: &mut rebuilt[..len.rebuilt] }
}
