//! A tiny model and a minimal runtime for it.

use lockstep_config::{
    Dtype, Family, GeluApproximate, GptNeox, LlamaVariant, Lora, LoraTargets, LossScale, Model,
    ModelType, Mup, Problem, RopeScaling, RopeScalingKind,
};
use lockstep_model::{
    Block, Blueprint, Context, Grads, IGNORE, Init, Microbatch, MicrobatchShape, Mode, Param,
    Recompute, Saved, Scratch, SingleRank, TensorCollectives, TensorShards, describe_shards,
};
use lockstep_tensor::device::{View, ViewMut};
use lockstep_tensor::gemm::Write;
use lockstep_tensor::random::{self, Key};
use lockstep_tensor::{Cpu, Isa};
use std::ops::Range;

/// Odd sizes everywhere; grouped-query attention.
pub(crate) const LLAMA: Model = Model {
    family: Family::Llama,
    layers: 2,
    width: 24,
    heads: 4,
    kv_heads: 2,
    ffn: 37,
    vocab: 29,
    context: 11,
    tied: false,
    dropout: 0.0,
    norm_eps: 1e-5,
    rope_theta: 10000.0,
    variant: LlamaVariant::PLAIN,
    gpt_neox: GptNeox::PYTHIA,
    mup: Mup::OFF,
    lora: Lora::NONE,
    problem: Problem::NONE,
};

/// GPT-2 with the sizes of [`LLAMA`].
pub(crate) const GPT2: Model = Model { family: Family::Gpt2, kv_heads: 4, ..LLAMA };

/// GPT-NeoX with these sizes, of which an even part of each head is turned.
pub(crate) const NEOX: Model = Model {
    family: Family::GptNeox,
    gpt_neox: GptNeox { rotary_pct: 0.7, ..GptNeox::PYTHIA },
    ..GPT2
};

/// GPT-NeoX with its other settings: a half of a layer behind the other, and GPT-2's GELU.
pub(crate) const SEQUENTIAL_NEOX: Model = Model {
    gpt_neox: GptNeox {
        rotary_pct: 1.0,
        parallel_residual: false,
        gelu_approximate: GeluApproximate::Tanh,
    },
    ..NEOX
};

/// BLOOM with these sizes, of heads whose number is no power of two.
pub(crate) const BLOOM: Model =
    Model { family: Family::Bloom, width: 18, heads: 3, kv_heads: 3, ..LLAMA };

/// [`LLAMA`] with every difference of its descendants: heads of another size than the width's,
/// biases, normalised heads, and scaled angles with a factor.
pub(crate) const VARIED: Model = Model { variant: VARIANT, ..LLAMA };

pub(crate) const VARIANT: LlamaVariant = LlamaVariant {
    head_size: Some(10),
    qkv_bias: true,
    qk_norm: true,
    rope: RopeScaling {
        kind: RopeScalingKind::Yarn,
        factor: 2.0,
        original_context: Some(8),
        ..RopeScaling::NONE
    },
    ..LlamaVariant::PLAIN
};

/// Norms behind both halves, and over whole queries and keys.
pub(crate) const OLMO2: LlamaVariant =
    LlamaVariant { model_type: Some(ModelType::Olmo2), ..LlamaVariant::PLAIN };

/// Fused tensors and a window.
pub(crate) const PHI3: LlamaVariant = LlamaVariant {
    model_type: Some(ModelType::Phi3),
    sliding_window: Some(3),
    ..LlamaVariant::PLAIN
};

/// Caps that scores and logits come near, four norms, and a window in the first layer.
pub(crate) const GEMMA2: LlamaVariant = LlamaVariant {
    model_type: Some(ModelType::Gemma2),
    sliding_window: Some(4),
    query_scalar: Some(5),
    attention_soft_cap: Some(1.5),
    final_soft_cap: Some(2.0),
    ..LlamaVariant::PLAIN
};

/// Adapters beside every linear layer, with dropout of their own.
pub(crate) const LORA: Lora =
    Lora { rank: 3, alpha: 1.5, dropout: 0.25, targets: LoraTargets::ALL, ..Lora::NONE };

/// Long sums: more keys than an attention tile has, products over more than 512.
pub(crate) const LONG: Model =
    Model { layers: 1, width: 16, ffn: 521, context: 175, dropout: 0.25, ..LLAMA };

/// All families, tied and untied, with and without dropout, their variants, and adapters.
pub(crate) fn variants() -> Vec<Model> {
    let mut variants = vec![VARIED, Model { lora: LORA, ..LLAMA }, SEQUENTIAL_NEOX];
    variants.extend([OLMO2, PHI3].map(|variant| Model { variant, ..LLAMA }));
    variants.push(Model { variant: GEMMA2, tied: true, dropout: 0.25, ..LLAMA });
    variants.push(Model { tied: true, dropout: 0.25, ..NEOX });
    variants.push(Model { tied: true, dropout: 0.25, ..BLOOM });
    for family in [LLAMA, GPT2] {
        for (tied, dropout) in [(false, 0.0), (true, 0.25)] {
            variants.push(Model { tied, dropout, ..family.clone() });
        }
    }
    variants
}

pub(crate) const TRAIN: Mode = train(5, 3);

/// A training pass.
pub(crate) const fn train(seed: u64, step: u64) -> Mode {
    Mode::Train { seed, step, loss_scale: LossScale::ONE }
}

/// Sequences of tokens with some targets masked; sequence i is equal in every batch.
pub(crate) struct Batch {
    pub(crate) shape: MicrobatchShape,
    inputs: Vec<u32>,
    targets: Vec<u32>,
}

impl Batch {
    pub(crate) fn new(model: &Model, sequences: usize) -> Self {
        let key = Key::new(11, "tokens");
        let tokens = model.context;
        let draw = |i: usize| (key.uniform_f64(i as u64) * model.vocab as f64) as u32;
        let target = |i: usize| if i % 7 == 4 { IGNORE } else { draw(100_000 + i) };
        let shape = MicrobatchShape { sequences, tokens };
        let inputs = (0..shape.rows()).map(draw).collect();
        Self { shape, inputs, targets: (0..shape.rows()).map(target).collect() }
    }

    pub(crate) fn inputs(&self) -> &[u32] {
        &self.inputs
    }

    /// The whole batch as one micro-batch.
    pub(crate) fn microbatch(&self) -> Microbatch<'_> {
        self.microbatch_of(0, self.shape.sequences)
    }

    /// Some sequences as a micro-batch.
    pub(crate) fn microbatch_of(&self, first: usize, sequences: usize) -> Microbatch<'_> {
        let rows = first * self.shape.tokens..(first + sequences) * self.shape.tokens;
        Microbatch {
            shape: MicrobatchShape { sequences, tokens: self.shape.tokens },
            inputs: View::of(&self.inputs[rows.clone()]),
            targets: View::of(&self.targets[rows]),
            first_sample: first as u64,
            num_targets: self.targets.iter().filter(|t| **t != IGNORE).count() as u64,
            documents: None,
            preferences: None,
        }
    }
}

/// A model with large random parameters, so that every path contributes.
pub(crate) struct Tiny {
    pub(crate) blueprint: Blueprint,
    pub(crate) params: Vec<Vec<f32>>,
    /// Whether backward is split into input and weight gradients, the latter after all of the
    /// former.
    pub(crate) halves: bool,
}

/// Results of a pass.
pub(crate) struct Outcome {
    pub(crate) loss: f64,
    /// Logits, or their gradients while training.
    pub(crate) logits: Vec<f32>,
    pub(crate) grads: Vec<Vec<f32>>,
    /// The gradient of the first block's output.
    pub(crate) d_stream: Vec<f32>,
}

impl Tiny {
    pub(crate) fn new(model: &Model) -> Self {
        Self::of_shards(model, &TensorShards::WHOLE)
    }

    /// Shards of the model: parameters are indexed in whole tensors.
    pub(crate) fn of_shards(model: &Model, shards: &TensorShards) -> Self {
        Self::computing(model, shards, Dtype::F32)
    }

    /// Shards of the model with products in another precision.
    pub(crate) fn computing(model: &Model, shards: &TensorShards, compute: Dtype) -> Self {
        let blueprint = describe_shards(model, shards, compute);
        let blocks = &blueprint.blocks;
        let mut params: Vec<_> = blocks.iter().map(|b| vec![0.0; b.num_params()]).collect();
        let cpu = Cpu::single(Isa::detect());
        for (block, param) in blueprint.params() {
            let values = &mut params[block][param.range()];
            let name = param.mirror_of.as_ref().unwrap_or(&param.name);
            let (middle, std) = match param.init {
                Init::Normal { .. } | Init::Uniform { .. } => (0.0, 0.25),
                Init::Ones => (1.0, 0.2),
                Init::Zeros => (0.0, 0.2),
            };
            let mut tensor = vec![0.0; param.tensor_len()];
            random::fill_normal(&cpu, Key::new(7, name), 0, std, &mut tensor);
            param.pick(0, &tensor, values);
            for value in values {
                *value += middle;
            }
        }
        Self { blueprint, params, halves: false }
    }

    /// Splits backward into two halves.
    pub(crate) fn in_halves(self) -> Self {
        Self { halves: true, ..self }
    }

    /// Runs the micro-batch forward and, in training, backward. Gradients start from `start`; if
    /// that is no number, they are undefined.
    pub(crate) fn run(
        &self,
        cpu: &Cpu,
        microbatch: &Microbatch<'_>,
        mode: Mode,
        recompute: Recompute,
        start: f32,
    ) -> Outcome {
        self.run_part(cpu, microbatch, mode, recompute, start, &|_| true)
    }

    /// As [`Self::run`], with other shards on other ranks.
    pub(crate) fn run_shards(
        &self,
        cpu: &Cpu,
        microbatch: &Microbatch<'_>,
        mode: Mode,
        recompute: Recompute,
        collectives: &mut dyn TensorCollectives,
    ) -> Outcome {
        self.run_all(cpu, microbatch, mode, recompute, 0.0, &|_| true, collectives)
    }

    /// As [`Self::run`], with gradients of the trained parameters only, contiguous.
    pub(crate) fn run_part(
        &self,
        cpu: &Cpu,
        microbatch: &Microbatch<'_>,
        mode: Mode,
        recompute: Recompute,
        start: f32,
        is_trained: &dyn Fn(&Param) -> bool,
    ) -> Outcome {
        self.run_all(cpu, microbatch, mode, recompute, start, is_trained, &mut SingleRank)
    }

    fn run_all(
        &self,
        cpu: &Cpu,
        microbatch: &Microbatch<'_>,
        mode: Mode,
        recompute: Recompute,
        start: f32,
        is_trained: &dyn Fn(&Param) -> bool,
        collectives: &mut dyn TensorCollectives,
    ) -> Outcome {
        let blocks = &self.blueprint.blocks;
        let stream_len = self.blueprint.stream_rows(microbatch.shape) * self.blueprint.max_width();
        let mut streams = vec![vec![0.0_f32; stream_len]; blocks.len() + 1];
        let lens: Vec<_> = blocks.iter().map(|b| b.saved_len(microbatch.shape)).collect();
        let mut kept: Vec<_> = lens.iter().map(|len| vec![0.0; len.kept]).collect();
        let mut rebuilt: Vec<_> = lens.iter().map(|len| vec![0.0; len.rebuilt]).collect();
        let scratch_len = self.blueprint.scratch_len(microbatch.shape);
        let (mut scratch, mut loss) =
            (Scratch::new(cpu, scratch_len).expect("the CPU runs every operation"), [0.0]);
        let mut ctx = Context {
            device: cpu,
            microbatch,
            mode,
            scratch: &mut scratch,
            collectives,
            loss: ViewMut::of(&mut loss),
            pairs: ViewMut::of::<f64>(&mut []),
        };
        for (i, block) in blocks.iter().enumerate() {
            let (inputs, outputs) = streams.split_at_mut(i + 1);
            let saved = saved_of(&mut kept[i], &mut rebuilt[i]);
            let (params, input) = (View::of(&self.params[i]), View::of(&inputs[i]));
            block
                .forward(&mut ctx, params, input, ViewMut::of(&mut outputs[0]), saved)
                .expect("the CPU runs every operation");
        }
        let shards = &self.blueprint.shards;
        let vocab = self.blueprint.vocab / shards.num * shards.num_local();
        let num_logits = microbatch.shape.rows() * vocab;
        let logits = kept[blocks.len() - 1][..num_logits].to_vec();
        let runs: Vec<Vec<_>> = blocks
            .iter()
            .map(|b| b.params().iter().filter(|p| is_trained(p)).map(Param::range).collect())
            .collect();
        let len = |runs: &Vec<Range<usize>>| runs.iter().map(Range::len).sum();
        let mut grads: Vec<_> = runs.iter().map(|runs| vec![start; len(runs)]).collect();
        let mut d_stream = vec![f32::NAN; stream_len];
        let mut d_embedded = Vec::new();
        let mut deferred: Vec<_> = blocks
            .iter()
            .map(|block| vec![f32::NAN; block.deferred_len(microbatch.shape)])
            .collect();
        if mode == Mode::Evaluate {
            return Outcome { loss: loss[0], logits, grads, d_stream };
        }
        for (i, block) in blocks.iter().enumerate().rev() {
            let what = if block.io().is_layer() { recompute } else { Recompute::None };
            discard(what, &mut kept[i], &mut rebuilt[i]);
            if i == 0 {
                d_embedded.clone_from(&d_stream);
            }
            let mut saved = saved_of(&mut kept[i], &mut rebuilt[i]);
            let (params, input) = (View::of(&self.params[i]), View::of(&streams[i]));
            block
                .recompute(&mut ctx, params, input, saved.reborrow(), what)
                .expect("the CPU runs every operation");
            if self.halves {
                let deferred = ViewMut::of(&mut deferred[i]);
                let d_stream = ViewMut::of(&mut d_stream);
                block
                    .backward_inputs(&mut ctx, params, input, saved, d_stream, deferred)
                    .expect("the CPU runs every operation");
                continue;
            }
            let grads = grads_of(&**block, cpu, &mut grads[i], &runs[i]);
            let d_stream = ViewMut::of(&mut d_stream);
            block
                .backward(&mut ctx, params, input, saved, d_stream, grads)
                .expect("the CPU runs every operation");
        }
        for (i, block) in blocks.iter().enumerate().rev().filter(|_| self.halves) {
            let what = if block.io().is_layer() { recompute } else { Recompute::None };
            discard(what, &mut kept[i], &mut rebuilt[i]);
            let mut saved = saved_of(&mut kept[i], &mut rebuilt[i]);
            let (params, input) = (View::of(&self.params[i]), View::of(&streams[i]));
            block
                .recompute(&mut ctx, params, input, saved.reborrow(), what)
                .expect("the CPU runs every operation");
            let grads = grads_of(&**block, cpu, &mut grads[i], &runs[i]);
            let deferred = ViewMut::of(&mut deferred[i]);
            block
                .backward_weights(&mut ctx, params, input, saved, deferred, grads)
                .expect("the CPU runs every operation");
        }
        Outcome { loss: loss[0], logits, grads, d_stream: d_embedded }
    }

    /// Trains on the micro-batch with default settings.
    pub(crate) fn train(&self, cpu: &Cpu, microbatch: &Microbatch<'_>) -> Outcome {
        self.run(cpu, microbatch, TRAIN, Recompute::None, 0.0)
    }
}

/// Gradients of a block: undefined where they are no numbers, zeroed first unless it sets them.
fn grads_of<'a>(
    block: &dyn Block,
    cpu: &Cpu,
    values: &'a mut [f32],
    runs: &'a [Range<usize>],
) -> Grads<'a> {
    let is_undefined = values.first().is_some_and(|x| x.is_nan());
    let write = if is_undefined { Write::Set } else { Write::Add };
    let grads = Grads::written(ViewMut::of(values), runs, write);
    if block.sets_gradients() {
        return grads;
    }
    grads.zeroed(cpu).expect("the CPU runs every operation")
}

fn saved_of<'a>(kept: &'a mut [f32], rebuilt: &'a mut [f32]) -> Saved<'a> {
    Saved { kept: ViewMut::of(kept), rebuilt: ViewMut::of(rebuilt) }
}

/// Overwrites values that a recomputation policy would not have saved.
fn discard(what: Recompute, kept: &mut [f32], rebuilt: &mut [f32]) {
    match what {
        Recompute::None => {}
        Recompute::Selective => rebuilt.fill(f32::NAN),
        Recompute::Full => {
            kept.fill(f32::NAN);
            rebuilt.fill(f32::NAN);
        }
    }
}

/// Asserts bitwise equality; a failure names the first element that differs.
pub(crate) fn assert_same(left: &[f32], right: &[f32], what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    let differs = left.iter().zip(right).position(|(l, r)| l.to_bits() != r.to_bits());
    assert!(differs.is_none(), "{what}: element {differs:?} differs");
}

impl Outcome {
    /// Asserts bitwise equality of all results of a pass.
    pub(crate) fn assert_same(&self, other: &Self, what: &str) {
        assert_eq!(self.loss.to_bits(), other.loss.to_bits(), "{what}: loss");
        assert_same(&self.logits, &other.logits, &format!("{what}: logits"));
        for (block, (left, right)) in self.grads.iter().zip(&other.grads).enumerate() {
            assert_same(left, right, &format!("{what}: gradients of block {block}"));
        }
        assert_same(&self.d_stream, &other.d_stream, &format!("{what}: stream"));
    }
}
