//! Teacher of a distillation: a frozen model that gives logits for every micro-batch of a student.
//!
//! It belongs to the head of the student, so the rank with the head runs it, whole and in front of
//! the loss, over the tokens and the documents of the micro-batch. It needs the activations of one
//! block at a time, and keeps the logits of one micro-batch. Their memory is allocated with the
//! weights, when these are read.

use crate::block::{Block, Context, Microbatch, MicrobatchShape, Mode, Saved, SavedLen};
use crate::collectives::SingleRank;
use crate::scratch::Scratch;
use lockstep_tensor::Cpu;
use lockstep_tensor::device::{Device, Result, View, ViewMut};
use lockstep_tensor::distillation::Settings;
use std::sync::{Mutex, OnceLock, PoisonError};

/// A model that teaches.
pub struct Teacher {
    /// Blocks of the model, unsharded.
    blocks: Vec<Box<dyn Block>>,
    vocab: usize,
    pub(crate) settings: Settings,
    loaded: OnceLock<Loaded>,
}

struct Loaded {
    /// Parameters of each block.
    params: Vec<Vec<f32>>,
    memory: Mutex<Memory>,
}

/// Memory of a pass.
struct Memory {
    /// Input and output of the current block, in turn.
    streams: [Vec<f32>; 2],
    kept: Vec<f32>,
    rebuilt: Vec<f32>,
    scratch: Scratch,
}

impl Teacher {
    /// A teacher of these blocks, without weights.
    pub const fn new(blocks: Vec<Box<dyn Block>>, vocab: usize, settings: Settings) -> Self {
        Self { blocks, vocab, settings, loaded: OnceLock::new() }
    }

    /// FLOPs of one token's forward pass.
    pub(crate) fn flops_per_token(&self, num_tokens: usize) -> u64 {
        self.blocks.iter().map(|block| block.flops_per_token(num_tokens).forward).sum()
    }

    /// Sets the parameters of each block, and allocates the memory for micro-batches of a shape.
    ///
    /// # Panics
    /// When the teacher has weights already.
    pub fn load(&self, cpu: &Cpu, params: Vec<Vec<f32>>, shape: MicrobatchShape) -> Result<()> {
        let zeros = |len| vec![0.0; len];
        let SavedLen { kept, rebuilt } = self.saved_len(shape);
        let memory = Memory {
            streams: [(); 2].map(|()| zeros(self.stream_len(shape))),
            kept: zeros(kept),
            rebuilt: zeros(rebuilt),
            scratch: Scratch::new(cpu, self.scratch_len(shape))?,
        };
        let is_new = self.loaded.set(Loaded { params, memory: Mutex::new(memory) }).is_ok();
        assert!(is_new, "a teacher is loaded once");
        Ok(())
    }

    /// Elements of its parameters, and of the memory of a pass.
    pub fn planned_len(&self, shape: MicrobatchShape) -> [usize; 2] {
        let SavedLen { kept, rebuilt } = self.saved_len(shape);
        let scratch = self.scratch_len(shape);
        let params = self.blocks.iter().map(|block| block.num_params()).sum();
        [params, 2 * self.stream_len(shape) + kept + rebuilt + scratch]
    }

    /// Elements that it holds, as [`Self::planned_len`] counts them.
    pub fn num_elements(&self) -> [usize; 2] {
        let Some(Loaded { params, memory }) = self.loaded.get() else { return [0; 2] };
        let memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Memory { streams: [one, other], kept, rebuilt, scratch } = &*memory;
        let of_pass = one.len() + other.len() + kept.len() + rebuilt.len() + scratch.len();
        [params.iter().map(Vec::len).sum(), of_pass]
    }

    /// Passes the logits of a micro-batch to `each`.
    ///
    /// # Panics
    /// Before [`Self::load`].
    pub(crate) fn with_logits(
        &self,
        device: &dyn Device,
        microbatch: &Microbatch<'_>,
        each: &mut dyn FnMut(View<'_>) -> Result<()>,
    ) -> Result<()> {
        let Loaded { params, memory } = self.loaded.get().expect("the teacher is loaded");
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        let Memory { streams: [input, output], kept, rebuilt, scratch } = &mut *memory;
        let rows = microbatch.shape.rows();
        let (mut input, mut output, mut loss) = (input, output, [0.0_f64]);
        let microbatch = &Microbatch { preferences: None, ..*microbatch };
        for (block, params) in self.blocks.iter().zip(params) {
            let mut ctx = Context {
                device,
                microbatch,
                mode: Mode::Evaluate,
                scratch: &mut *scratch,
                collectives: &mut SingleRank,
                loss: ViewMut::of(&mut loss),
                pairs: ViewMut::of::<f64>(&mut []),
            };
            let (io, len) = (block.io(), block.saved_len(microbatch.shape));
            let saved = Saved {
                kept: ViewMut::of(&mut kept[..len.kept]),
                rebuilt: ViewMut::of(&mut rebuilt[..len.rebuilt]),
            };
            let from = View::of(&input[..rows * io.input_width()]);
            let to = ViewMut::of(&mut output[..rows * io.output_width()]);
            block.forward(&mut ctx, View::of(params), from, to, saved)?;
            std::mem::swap(&mut input, &mut output);
        }
        // In an evaluation, logits are the first values that a head keeps.
        each(View::of(&kept[..rows * self.vocab]))
    }

    fn stream_len(&self, shape: MicrobatchShape) -> usize {
        let widths = self.blocks.iter().map(|block| block.io().max_width());
        shape.rows() * widths.max().unwrap_or(0)
    }

    fn scratch_len(&self, shape: MicrobatchShape) -> usize {
        self.blocks.iter().map(|block| block.scratch_len(shape)).max().unwrap_or(0)
    }

    /// The most that a block saves, in each part.
    fn saved_len(&self, shape: MicrobatchShape) -> SavedLen {
        let all = self.blocks.iter().map(|block| block.saved_len(shape));
        all.fold(SavedLen::default(), |most, len| SavedLen {
            kept: most.kept.max(len.kept),
            rebuilt: most.rebuilt.max(len.rebuilt),
        })
    }
}
