//! The model architecture; a small problem has few of its keys.

use super::llama_variant;
use super::{
    Activation, Family, GptNeox, LlamaVariant, Lora, LoraTarget, ModelType, Mup, Problem, Recipe,
    Tokenizer,
};
use crate::error::{ConfigError, alternatives};
use crate::presets;
use crate::rule::{Rule, RuleContext, Rules, working};
use crate::topic::topic;
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::ValueType;

/// Families with layers and a width.
const LAYERED: &[&str] = &["gpt2", "llama", "gpt_neox", "bloom", "mlp"];

/// Largest number of heads.
const MAX_HEADS: i64 = 1024;

/// Largest width.
const MAX_WIDTH: i64 = 1 << 16;

topic! {
    /// Architecture of the model.
    pub struct Model at model, table "model" {
        /// Preset whose model table gives the defaults of the other model keys.
        key preset at from: String = none, of(ValueType::Choice(presets::NAMES)),
            access(|_| None, |_, _| {});

        /// Folder of a model to start from, of Hugging Face or of a finished run; the other model
        /// keys follow from it (context may be shorter, dropout may differ).
        key from at from: String = none, not_empty();

        /// Loads only the weights of model.from that match a parameter by name and shape; the
        /// others are initialised, and the model keys are the recipe's own.
        key partial at partial: bool = none;

        /// Architecture: gpt2 has LayerNorm, learned positions, GELU and biases; llama has RMSNorm,
        /// rotary positions, SwiGLU and no biases; gpt_neox is gpt2 with rotary positions and both
        /// halves of a layer beside each other, bloom with attention biases by distance (ALiBi) and
        /// a normalised embedding. Small problems: mlp classifies drawn digits; quadratic, ridge
        /// and logistic are convex with a known optimum.
        family: Family = "llama";

        /// Number of transformer layers, or of hidden layers of an mlp.
        layers: usize = 4, integer(1, 1024), when("model.family", LAYERED);

        /// Hidden size of the transformer, or width of a hidden layer of an mlp.
        width: usize = 64, integer(1, MAX_WIDTH), when("model.family", LAYERED);

        /// Number of query heads; divides model.width into heads of at most 256, even for llama,
        /// unless model.head_dim sets their size.
        heads: usize = 4, integer(1, MAX_HEADS), when("model.family", Family::OF_TEXT);

        /// Number of key and value heads; divides model.heads, and fewer is grouped-query attention
        /// (llama only).
        kv_heads: usize = ("= model.heads", |r| r.model.heads), integer(1, MAX_HEADS),
            when("model.family", Family::OF_TEXT);

        /// Intermediate size of the feed-forward network.
        ffn: usize = (
            "= 8/3 model.width rounded up to a multiple of 64 (llama), else 4 model.width",
            default_ffn
        ), integer(1, 1 << 20), when("model.family", Family::OF_TEXT);

        /// Vocabulary size; at least that of the tokenizer.
        vocab: usize = 256, integer(2, 1 << 20), when("model.family", Family::OF_TEXT);

        /// Sequence length in tokens.
        context: usize = 128, integer(2, 1 << 20), when("model.family", Family::OF_TEXT),
            inactive(1);

        /// Maximum number of positions that an exported model declares, at least model.context;
        /// that of model.from survives training with a shorter context. Otherwise it is
        /// model.context.
        key max_positions at max_positions: Option<usize> = none, integer(2, i32::MAX as i64),
            when("model.family", Family::UNBOUNDED), in_identity_when(|_| false);

        /// Whether the output projection shares the weights of the token embedding.
        tied: bool = false, when("model.family", Family::OF_TEXT);

        /// Dropout probability (attention, residual, embedding).
        dropout: f32 = 0.0, float(Closed(0.0), Open(1.0)), when("model.family", Family::OF_TEXT);

        /// Epsilon of the normalisation layers.
        norm_eps: f32 = 1e-5, float(Closed(1e-12), Closed(1.0)),
            when("model.family", Family::OF_TEXT);

        /// Base of the rotary position angles.
        rope_theta: f64 = 10000.0, float(Closed(1.0), Closed(1e12)),
            when("model.family", Family::ROTARY);

        /// Differences from the plain Llama.
        part variant: LlamaVariant;

        /// Settings of GPT-NeoX.
        part gpt_neox: GptNeox;

        /// Width transfer by muP.
        part mup: Mup;

        /// Activation function between the linear layers.
        key activation at model.problem.activation: Activation = "relu",
            when("model.family", &["mlp"]);

        /// Settings of a small problem (`mlp`, `quadratic`, `ridge`, `logistic`).
        field problem: Problem;

        /// Low-rank adapters of the linear layers.
        field lora: Lora;
    }
}

/// Customary size: two thirds of four times the width for Llama, whose SwiGLU has a third matrix,
/// rounded up for the kernels; four times the width for the others.
fn default_ffn(recipe: &Recipe) -> usize {
    match recipe.model.family {
        Family::Llama => (8 * recipe.model.width).div_ceil(3).next_multiple_of(64),
        _ => 4 * recipe.model.width,
    }
}

impl Model {
    /// Head size; `heads` divides `width` where it is not set.
    pub const fn head_dim(&self) -> usize {
        match self.variant.head_size {
            Some(head_dim) => head_dim,
            None => self.width / self.heads,
        }
    }

    /// Elements of a head that rotary positions turn.
    pub fn rotary_dims(&self) -> usize {
        match self.family {
            Family::GptNeox => self.gpt_neox.rotary_dims(self.head_dim()),
            _ => self.head_dim(),
        }
    }

    /// Reason why the kernels of accelerators cannot compute the model, if any.
    pub fn cpu_only(&self) -> Option<&'static str> {
        match self.family {
            Family::GptNeox => Some("CUDA has no kernels for the parts of model.family = gpt_neox"),
            Family::Bloom => Some("CUDA has no kernel for the attention of model.family = bloom"),
            _ if self.mup.score_factor(self.head_dim()).is_some() => {
                Some("CUDA has no kernel for the scores of model.mup_base_head_dim")
            }
            _ => self.variant.cpu_only(self.context),
        }
    }

    /// Inputs and outputs of a linear layer.
    pub const fn linear_shape(&self, target: LoraTarget) -> (usize, usize) {
        let (queries, keys) = (self.heads * self.head_dim(), self.kv_heads * self.head_dim());
        match target {
            LoraTarget::Query => (self.width, queries),
            LoraTarget::Key | LoraTarget::Value => (self.width, keys),
            LoraTarget::Output => (queries, self.width),
            LoraTarget::Gate | LoraTarget::Up => (self.width, self.ffn),
            LoraTarget::Down => (self.ffn, self.width),
        }
    }
}

/// Largest head size that the attention kernel supports.
const MAX_HEAD_DIM: usize = llama_variant::MAX_HEAD_DIM as usize;

const HEADS: Rule =
    Rule::new(&["model.heads", "model.width", "model.family", "model.head_dim"], heads_fit_width);

pub(crate) const RULES: Rules = Rules::new(&[
    HEADS,
    Rule::new(&["model.kv_heads", "model.heads", "model.family"], kv_heads_fit_heads),
    Rule::new(&["model.vocab", "data.tokenizer"], |c| {
        let tokenizer = &c.data.tokenizer;
        // The size of a file's vocabulary is checked when the file is read.
        let num_tokens = if *tokenizer == Tokenizer::Byte { 256 } else { 0 };
        let rule = format!("is below the {num_tokens} tokens of data.tokenizer = \"{tokenizer}\"");
        c.refuse(c.model.vocab < num_tokens, rule, num_tokens)
    }),
    Rule::new(&["model.max_positions", "model.context"], |c| {
        let context = c.model.context;
        let is_below = c.max_positions.is_some_and(|max| max < context);
        c.refuse(is_below, format!("is below model.context = {context}"), context)
    }),
])
.when(&[], |r| !r.model.family.is_problem());

fn heads_fit_width(c: &RuleContext<'_>) -> Option<ConfigError> {
    let model = &c.model;
    let Model { width, heads, .. } = *model;
    if model.variant.head_size.is_some() || head_dim_fits(model, width, heads) {
        return None;
    }
    let divides = width.is_multiple_of(heads);
    let limit = if divides && width / heads > MAX_HEAD_DIM {
        format!("and the maximum is {MAX_HEAD_DIM}")
    } else {
        "and llama needs an even head size".to_owned()
    };
    let kv_heads_given = c.is_set("model.kv_heads");
    let works = |heads| {
        head_dim_fits(model, width, heads) && (!kv_heads_given || kv_heads_suit(model, heads))
    };
    let working = working(width.min(MAX_HEADS as usize), works, heads);
    if working.is_empty() {
        let rule = if divides {
            format!("makes heads of {} with model.heads = {heads}, {limit}", width / heads)
        } else {
            format!("is not a multiple of model.heads = {heads}")
        };
        let fix = format!("try {}", alternatives(&working_widths(model)));
        return Some(c.error_about(&["model.width", "model.heads"], rule, fix));
    }
    let rule = if divides {
        format!("makes heads of {} with model.width = {width}, {limit}", width / heads)
    } else {
        format!("does not divide model.width = {width}")
    };
    c.refuse(true, rule, working)
}

/// Whether this number of heads divides the width into head sizes that the family supports.
fn head_dim_fits(model: &Model, width: usize, heads: usize) -> bool {
    let head_dim = width / heads;
    width.is_multiple_of(heads)
        && head_dim <= MAX_HEAD_DIM
        && (model.family != Family::Llama || head_dim.is_multiple_of(2))
}

/// The widths next to the current one that fit the number of heads.
fn working_widths(model: &Model) -> Vec<usize> {
    let unit = if model.family == Family::Llama { 2 * model.heads } else { model.heads };
    let largest = (MAX_HEAD_DIM * model.heads).min(MAX_WIDTH as usize);
    let below = (model.width / unit * unit).clamp(unit, largest / unit * unit);
    [below, below + unit].into_iter().filter(|width| *width <= largest).collect()
}

fn kv_heads_fit_heads(c: &RuleContext<'_>) -> Option<ConfigError> {
    let Model { heads, kv_heads, .. } = c.model;
    // The fix for the heads respects the key heads, so a second error would be noise.
    let heads_fail = c.check(&HEADS).iter().any(|error| error.key == "model.heads");
    if heads_fail || kv_heads_suit(&c.model, heads) {
        return None;
    }
    if c.model.family != Family::Llama {
        let family = c.model.family.name();
        let rule = format!(
            "needs model.family = \"llama\", because {family} has no grouped-query attention"
        );
        return c.refuse(true, rule, heads);
    }
    let divisors = working(heads, |number| heads.is_multiple_of(number), kv_heads);
    c.refuse(true, format!("does not divide model.heads = {heads}"), divisors)
}

/// Whether the model's key heads fit this number of query heads.
fn kv_heads_suit(model: &Model, heads: usize) -> bool {
    match model.family {
        Family::Llama => heads.is_multiple_of(model.kv_heads),
        _ => model.kv_heads == heads,
    }
}

impl Model {
    /// Exact number of parameters of a language model, adapters included, tied weights counted
    /// once; none for a problem.
    pub(crate) fn num_params(&self) -> Option<usize> {
        let Self { layers, width: c, ffn: f, vocab: v, context: t, .. } = *self;
        let head = if self.tied { 0 } else { v * c };
        match self.family {
            Family::Llama => {
                let (q, kv) = (self.heads * self.head_dim(), self.kv_heads * self.head_dim());
                let biases = if self.variant.qkv_bias { q + 2 * kv } else { 0 };
                let of_heads = if self.variant.qk_norm { 2 * self.head_dim() } else { 0 };
                let norms = match self.variant.model_type {
                    Some(ModelType::Olmo2) => 2 * c + q + kv,
                    Some(ModelType::Gemma2) => 4 * c,
                    _ => 2 * c + of_heads,
                };
                let adapters: usize = self.lora.targets.iter().map(|t| self.adapter_len(t)).sum();
                let layer = 2 * c * q + 2 * c * kv + 3 * c * f + norms + biases + adapters;
                Some(layers * layer + v * c + c + head)
            }
            Family::Gpt2 | Family::GptNeox | Family::Bloom => {
                let layer = 4 * c * c + 4 * c + 2 * c * f + f + c + 4 * c;
                let beside_tokens = match self.family {
                    Family::Gpt2 => t * c,
                    Family::Bloom => 2 * c,
                    _ => 0,
                };
                Some(layers * layer + v * c + beside_tokens + 2 * c + head)
            }
            _ => None,
        }
    }

    /// Number of parameters of an adapter.
    fn adapter_len(&self, target: LoraTarget) -> usize {
        let (inputs, outputs) = self.linear_shape(target);
        self.lora.rank * (inputs + outputs)
    }
}
