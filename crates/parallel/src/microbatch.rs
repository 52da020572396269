//! One micro-batch through a run of blocks: forward, and backward from what forward saved.
//!
//! What a micro-batch leaves behind between the two is a value, [`Activations`]: the stream at every
//! boundary between blocks, and what each block saved. A worker that has all blocks needs one of
//! them and uses it for micro-batch after micro-batch; a stage of a pipeline ([`crate::pipeline`]) keeps as many
//! as its schedule has micro-batches in flight. All memory is allocated when the value is made.
//!
//! A block's gradients depend on the micro-batch, its parameters and nothing else; where they are added
//! is the business of a [`Store`].

use crate::recompute::RecomputePlan;
use lockstep_comm::CommError;
use lockstep_model::{
    Block, Blueprint, Context, Grads, MicrobatchShape, Mode, Recompute, Saved, SavedLen,
};
use lockstep_tensor::Cpu;
use std::ops::Range;

/// Where parameters come from and gradients go.
///
/// A block's parameters may have to be brought from other workers first, and its gradients may
/// leave for them as soon as they are added; both can fail.
pub trait Store {
    /// Brings a block's parameters; `next` is the block that will be asked for after it.
    fn fetch(&mut self, block: usize, next: Option<usize>) -> Result<(), CommError>;

    /// The parameters that were brought last.
    fn params(&self, block: usize) -> &[f32];

    /// The parameters, and where the micro-batch adds the gradients of those that are trained.
    fn params_and_grads(
        &mut self,
        cpu: &Cpu,
        block: usize,
    ) -> Result<(&[f32], Grads<'_>), CommError>;

    /// The first block that has gradients: backward ends there.
    fn first_trained(&self) -> usize;

    /// Says that the gradients are added.
    fn finish_grads(&mut self, cpu: &Cpu, block: usize) -> Result<(), CommError>;

    /// Says that other workers add gradients of a micro-batch and this one has none.
    fn pass_over(&mut self, _cpu: &Cpu, _block: usize) -> Result<(), CommError> {
        Ok(())
    }
}

/// What a micro-batch leaves between forward and backward in a run of blocks, and what evaluation writes
/// into.
#[derive(Debug)]
pub struct Activations {
    recompute: RecomputePlan,
    /// The first of the blocks.
    first: usize,
    /// Rows of every stream.
    rows: usize,
    /// Stream i is the input of the i-th of them; the last one is the output of the last block.
    /// Streams that are tokens or the loss have no elements.
    streams: Vec<Vec<f32>>,
    /// What each block saved and keeps.
    saved: Vec<SavedBuffers>,
}

/// What the gradients of every block's input leave for those of its parameters, where these come
/// later.
#[derive(Debug)]
pub struct Late(Vec<Vec<f32>>);

/// What of a backward pass is run: all at once, or first what others wait for and later the rest.
#[derive(Debug)]
pub enum Half<'a> {
    /// Gradients of inputs and of parameters.
    Both,
    /// Gradients of inputs only. What the other half needs of them is kept.
    Inputs(&'a mut Late),
    /// Gradients of parameters, after the inputs' half.
    Weights(&'a mut Late),
}

/// Holds, for the block at work, what it does not keep. One for all micro-batches of a worker.
#[derive(Debug)]
pub struct Shared(SavedBuffers);

#[derive(Debug)]
struct SavedBuffers {
    kept: Vec<f32>,
    rebuilt: Vec<f32>,
}

impl SavedBuffers {
    fn new(len: SavedLen) -> Self {
        Self { kept: vec![0.0; len.kept], rebuilt: vec![0.0; len.rebuilt] }
    }

    fn len(&self) -> usize {
        self.kept.len() + self.rebuilt.len()
    }
}

/// How long the parts of [`Activations`] are, and what [`Shared`] must hold for them.
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
        let (blocks, rows) = (&blueprint.blocks[run.clone()], blueprint.stream_rows(shape));
        let mut streams: Vec<_> =
            blocks.iter().map(|block| rows * block.io().input_width()).collect();
        streams.push(blocks.last().map_or(0, |last| rows * last.io().output_width()));
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

impl Shared {
    /// What the runs of blocks of a worker need.
    pub fn new(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
        runs: &[Range<usize>],
    ) -> Self {
        Self(SavedBuffers::new(Self::planned(blueprint, shape, recompute, runs)))
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

impl Late {
    /// Memory for micro-batches of one shape through some blocks of a model.
    pub fn new(blueprint: &Blueprint, shape: MicrobatchShape, run: Range<usize>) -> Self {
        let lens = blueprint.blocks[run].iter().map(|block| block.late_len(shape));
        Self(lens.map(|len| vec![0.0; len]).collect())
    }

    /// Number of elements that [`Self::new`] would allocate.
    pub fn planned_len(blueprint: &Blueprint, shape: MicrobatchShape, run: Range<usize>) -> usize {
        blueprint.blocks[run].iter().map(|block| block.late_len(shape)).sum()
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }
}

impl Activations {
    /// Memory for micro-batches of one shape through some blocks of a model.
    pub fn new(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
        run: Range<usize>,
    ) -> Self {
        let lengths = Lengths::new(blueprint, shape, recompute, run.clone());
        Self {
            recompute,
            first: run.start,
            rows: blueprint.stream_rows(shape),
            streams: lengths.streams.into_iter().map(|len| vec![0.0; len]).collect(),
            saved: lengths.saved.into_iter().map(SavedBuffers::new).collect(),
        }
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

    /// How many of them are each block's own: its input and what it saves. The rest is shared by
    /// blocks that compute again.
    pub fn planned_by_block(
        blueprint: &Blueprint,
        shape: MicrobatchShape,
        recompute: RecomputePlan,
    ) -> Vec<usize> {
        let all = 0..blueprint.blocks.len();
        let Lengths { streams, saved, .. } = Lengths::new(blueprint, shape, recompute, all);
        streams.iter().zip(&saved).map(|(input, own)| input + own.kept + own.rebuilt).collect()
    }

    /// The blocks that the micro-batch passes through here.
    pub fn run(&self) -> Range<usize> {
        self.first..self.first + self.saved.len()
    }

    /// Where the input of the first block comes to lie; nothing where that reads tokens.
    pub fn input_mut(&mut self) -> &mut [f32] {
        &mut self.streams[0]
    }

    /// The output of the last block; nothing where that is the loss.
    pub fn output(&self) -> &[f32] {
        &self.streams[self.saved.len()]
    }

    /// Runs the micro-batch forward and returns the sum of its token losses, zero where the loss is not
    /// among the blocks. Ends early, here as in the passes below, where the context's exchange has
    /// failed: whoever made it asks it why.
    pub fn forward(
        &mut self,
        blocks: &[Box<dyn Block>],
        store: &mut impl Store,
        ctx: &mut Context<'_>,
        shared: &mut Shared,
    ) -> Result<f64, CommError> {
        let mut loss = 0.0;
        let run = self.run();
        for (at, index) in run.clone().enumerate() {
            let block = &blocks[index];
            // Behind the last block comes backward, which starts there.
            store.fetch(index, Some((index + 1).min(run.end - 1)))?;
            let (inputs, outputs) = self.streams.split_at_mut(at + 1);
            let policy = self.recompute.of_block(index, &**block);
            let len = block.saved_len(ctx.microbatch.shape);
            let saved = saved_of(&mut self.saved[at], &mut shared.0, policy, len);
            let params = store.params(index);
            loss += block.forward(ctx, params, &inputs[at], &mut outputs[0], saved);
            if ctx.exchange.has_failed() {
                break;
            }
        }
        Ok(loss)
    }

    /// Runs the micro-batch backward, or one half of that. `d_stream` holds the gradient of the last
    /// block's output (of no meaning where that is the loss) and ends as the gradient of the input
    /// of the first block here, or of the first block that is trained if that comes later; the half
    /// of the weights leaves it alone.
    pub fn backward(
        &mut self,
        mut half: Half<'_>,
        blocks: &[Box<dyn Block>],
        store: &mut impl Store,
        ctx: &mut Context<'_>,
        shared: &mut Shared,
        d_stream: &mut [f32],
    ) -> Result<(), CommError> {
        assert_ne!(ctx.mode, Mode::Evaluate, "evaluation has no backward");
        let first = store.first_trained().max(self.first);
        for index in (first..self.run().end).rev() {
            let (at, block) = (index - self.first, &blocks[index]);
            store.fetch(index, (index > first).then(|| index - 1))?;
            let input = &self.streams[at];
            let policy = self.recompute.of_block(index, &**block);
            let len = block.saved_len(ctx.microbatch.shape);
            let mut saved = saved_of(&mut self.saved[at], &mut shared.0, policy, len);
            let (params, grads) = match half {
                Half::Inputs(_) => (store.params(index), Grads::none()),
                Half::Both | Half::Weights(_) => store.params_and_grads(ctx.cpu, index)?,
            };
            block.recompute(ctx, params, input, saved.reborrow(), policy);
            let d_stream = &mut d_stream[..self.rows * block.io().max_width()];
            match &mut half {
                Half::Both => block.backward(ctx, params, input, saved, d_stream, grads),
                Half::Inputs(Late(late)) => {
                    block.backward_inputs(ctx, params, input, saved, d_stream, &mut late[at]);
                }
                Half::Weights(Late(late)) => {
                    block.backward_weights(ctx, params, input, saved, &mut late[at], grads);
                }
            }
            if ctx.exchange.has_failed() {
                break;
            }
            if !matches!(half, Half::Inputs(_)) {
                store.finish_grads(ctx.cpu, index)?;
            }
        }
        Ok(())
    }

    /// What the last block keeps; one that ends in the loss keeps its logits first.
    pub fn last_kept(&self) -> &[f32] {
        self.saved.last().map_or(&[], |saved| &saved.kept)
    }

    /// Number of elements held.
    pub fn num_elements(&self) -> usize {
        let saved: usize = self.saved.iter().map(SavedBuffers::len).sum();
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
