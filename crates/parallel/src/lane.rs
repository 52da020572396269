//! One lane through all blocks: forward, and backward from what forward saved.
//!
//! What a lane leaves behind between the two is a value, [`Activations`]: the stream at every
//! boundary between blocks, and what each block saved. One worker needs one of them and uses it for
//! lane after lane; a pipeline stage keeps as many as its schedule has lanes in flight. All memory
//! is allocated when the value is made.
//!
//! A block's gradients depend on the lane, its parameters and nothing else; where they are added
//! is the business of a [`Store`].

use crate::recompute::RecomputePlan;
use lockstep_comm::CommError;
use lockstep_model::{
    Block, Blueprint, Context, Grads, LaneShape, Mode, Recompute, Saved, SavedLen,
};
use lockstep_tensor::Cpu;

/// Where parameters come from and gradients go.
///
/// A block's parameters may have to be brought from other workers first, and its gradients may
/// leave for them as soon as they are added; both can fail.
pub trait Store {
    /// Brings a block's parameters; `next` is the block that will be asked for after it.
    fn fetch(&mut self, block: usize, next: Option<usize>) -> Result<(), CommError>;

    /// The parameters that were brought last.
    fn params(&self, block: usize) -> &[f32];

    /// The parameters, and where the lane adds the gradients of those that are trained.
    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
    ) -> Result<(&[f32], Grads<'_>), CommError>;

    /// The first block that has gradients: backward ends there.
    fn first_trained(&self) -> usize;

    /// Says that the gradients are added.
    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError>;
}

/// What a lane leaves between forward and backward, and what evaluation writes into.
#[derive(Debug)]
pub struct Activations {
    recompute: RecomputePlan,
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
    fn new(blueprint: &Blueprint, shape: LaneShape, recompute: RecomputePlan) -> Self {
        let blocks = &blueprint.blocks;
        let mut streams: Vec<_> =
            blocks.iter().map(|block| shape.rows() * block.io().input_width()).collect();
        streams.push(blocks.last().map_or(0, |last| shape.rows() * last.io().output_width()));
        let mut shared = SavedLen::default();
        let mut saved = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
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

impl Activations {
    /// Memory for lanes of one shape through the blocks of a model.
    pub fn new(blueprint: &Blueprint, shape: LaneShape, recompute: RecomputePlan) -> Self {
        let lengths = Lengths::new(blueprint, shape, recompute);
        Self {
            recompute,
            streams: lengths.streams.into_iter().map(|len| vec![0.0; len]).collect(),
            saved: lengths.saved.into_iter().map(SavedBuffers::new).collect(),
            shared: SavedBuffers::new(lengths.shared),
        }
    }

    /// Number of elements that [`Self::new`] would allocate.
    pub fn planned_len(blueprint: &Blueprint, shape: LaneShape, recompute: RecomputePlan) -> usize {
        let Lengths { streams, saved, shared } = Lengths::new(blueprint, shape, recompute);
        let saved: usize = saved.iter().chain([&shared]).map(|len| len.kept + len.rebuilt).sum();
        saved + streams.iter().sum::<usize>()
    }

    /// How many of them are each block's own: its input and what it saves. The rest is shared by
    /// blocks that compute again.
    pub fn planned_by_block(
        blueprint: &Blueprint,
        shape: LaneShape,
        recompute: RecomputePlan,
    ) -> Vec<usize> {
        let Lengths { streams, saved, .. } = Lengths::new(blueprint, shape, recompute);
        streams.iter().zip(&saved).map(|(input, own)| input + own.kept + own.rebuilt).collect()
    }

    /// Runs the lane forward and returns the sum of its token losses.
    pub fn forward(
        &mut self,
        blocks: &[Box<dyn Block>],
        store: &mut impl Store,
        ctx: &mut Context<'_>,
    ) -> Result<f64, CommError> {
        let mut loss = 0.0;
        for (index, block) in blocks.iter().enumerate() {
            // Behind the last block comes backward, which starts there.
            store.fetch(index, Some((index + 1).min(blocks.len() - 1)))?;
            let (inputs, outputs) = self.streams.split_at_mut(index + 1);
            let policy = self.recompute.of_block(index, &**block);
            let len = block.saved_len(ctx.lane.shape);
            let saved = saved_of(&mut self.saved[index], &mut self.shared, policy, len);
            let params = store.params(index);
            loss += block.forward(ctx, params, &inputs[index], &mut outputs[0], saved);
        }
        Ok(loss)
    }

    /// Runs the lane backward. `d_stream` holds the gradient of the last block's output (of no
    /// meaning where that is the loss) and ends as the gradient of the input of the first block
    /// that is trained.
    pub fn backward(
        &mut self,
        blocks: &[Box<dyn Block>],
        store: &mut impl Store,
        ctx: &mut Context<'_>,
        d_stream: &mut [f32],
    ) -> Result<(), CommError> {
        assert_ne!(ctx.mode, Mode::Evaluate, "evaluation has no backward");
        let first = store.first_trained();
        for (index, block) in blocks.iter().enumerate().skip(first).rev() {
            store.fetch(index, (index > first).then(|| index - 1))?;
            let input = &self.streams[index];
            let policy = self.recompute.of_block(index, &**block);
            let len = block.saved_len(ctx.lane.shape);
            let mut saved = saved_of(&mut self.saved[index], &mut self.shared, policy, len);
            let (params, grads) = store.params_and_grads(ctx.cpu, index)?;
            block.recompute(ctx, params, input, saved.reborrow(), policy);
            let d_stream = &mut d_stream[..ctx.lane.shape.rows() * block.io().max_width()];
            block.backward(ctx, params, input, saved, d_stream, grads);
            store.finish_grads(ctx.cpu, index)?;
        }
        Ok(())
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
