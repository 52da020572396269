//! Low-rank adaptation (LoRA, Hu et al. 2021): the weights of the model are frozen, and small
//! adapters beside its linear layers are trained. Names and defaults are those of Hugging Face's
//! `peft`. The weights may be frozen in four bits (QLoRA, Dettmers et al. 2023), with the names of
//! `bitsandbytes` after their `bnb_4bit_`.

use super::{Partition, Recipe};
use crate::error::ConfigError;
use crate::field::field;
use crate::rule::{Rule, RuleContext, Rules};
use crate::topic::{choices, topic};
use crate::value::Value;
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::ValueType;

/// Families whose layers may have adapters.
const LLAMA: &[&str] = &["llama"];

topic! {
    /// Fine-tuning with low-rank adapters (LoRA).
    #[derive(Copy)]
    pub struct Lora at model.lora, among "finetune" {
        /// Rank of the adapters: every layer of finetune.lora_targets gets two matrices of this
        /// rank, which are trained while all weights of the model are frozen; 0 trains the weights.
        rank as lora_rank: usize = 0, integer(0, 4096), in_identity_unless_default(),
            when("model.family", LLAMA);

        /// Scale of the adapters: their output is multiplied by lora_alpha / lora_rank.
        alpha as lora_alpha: f32 = 8.0, float(Open(0.0), Closed(1e6)), in_identity_when(is_on),
            when("model.family", LLAMA);

        /// Dropout probability of the adapters' input.
        dropout as lora_dropout: f32 = 0.0, float(Closed(0.0), Open(1.0)), in_identity_when(is_on),
            when("model.family", LLAMA);

        /// Linear layers with adapters: a list, or all-linear for every linear layer of the layers,
        /// without the head and the embedding.
        targets as lora_targets: LoraTargets = ["q_proj", "v_proj"], in_identity_when(is_on),
            when("model.family", LLAMA);

        /// Number format of the frozen weights beside adapters: none keeps f32, nf4 is 4-bit
        /// NormalFloat in blocks of 64 (QLoRA), for all linear layers of the layers. Products
        /// dequantise them.
        quant_type: QuantType = "none", in_identity_unless_default(),
            when("model.family", LLAMA);

        /// Whether the scales of finetune.quant_type = nf4 are quantised too, in eight bits and
        /// groups of 256 (double quantisation): 4.13 bits a weight instead of 4.5.
        double_quant: bool = true, in_identity_when(is_quantised), when("model.family", LLAMA);

        /// Folder of a peft adapter whose matrices are the initial ones; the other keys of this
        /// table follow from it (the dropout may differ).
        key adapter at adapter: String = none, not_empty(), when("model.family", LLAMA);
    }
}

choices! {
    /// Number format of frozen weights.
    QuantType {
        /// Not quantised.
        None = "none",
        /// 4-bit NormalFloat.
        Nf4 = "nf4",
    }

    /// A linear layer of a transformer layer.
    LoraTarget {
        /// Queries.
        Query = "q_proj",
        /// Keys.
        Key = "k_proj",
        /// Values.
        Value = "v_proj",
        /// Output of attention.
        Output = "o_proj",
        /// Gate of the feed-forward network.
        Gate = "gate_proj",
        /// First layer of the feed-forward network.
        Up = "up_proj",
        /// Second layer of the feed-forward network.
        Down = "down_proj",
    }
}

impl LoraTarget {
    /// All of them, in the order of a layer.
    pub const ALL: [Self; 7] =
        [Self::Query, Self::Key, Self::Value, Self::Output, Self::Gate, Self::Up, Self::Down];
}

/// A set of linear layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoraTargets(u8);

/// All linear layers of a layer, as `peft` writes it.
const ALL_LINEAR: &str = "all-linear";

impl LoraTargets {
    const NONE: Self = Self(0);

    /// All linear layers.
    pub const ALL: Self = Self((1 << LoraTarget::ALL.len()) - 1);

    /// Queries and values, as `peft` has them for Llama.
    const USUAL: Self = Self((1 << LoraTarget::Query as u8) | (1 << LoraTarget::Value as u8));

    /// Whether a layer is in the set.
    pub const fn contains(self, target: LoraTarget) -> bool {
        self.0 & (1 << target as u8) != 0
    }

    /// The layers, in the order of a transformer layer.
    pub fn iter(self) -> impl Iterator<Item = LoraTarget> {
        LoraTarget::ALL.into_iter().filter(move |target| self.contains(*target))
    }
}

impl FromIterator<LoraTarget> for LoraTargets {
    fn from_iter<I: IntoIterator<Item = LoraTarget>>(targets: I) -> Self {
        Self(targets.into_iter().fold(0, |set, target| set | (1 << target as u8)))
    }
}

field!(
    LoraTargets: ValueType::OrName(
        &ValueType::List { of: &ValueType::Choice(LoraTarget::NAMES), max: 64 },
        &[ALL_LINEAR],
    ),
    blank Self::NONE,
    to |targets| Value::List(targets.iter().map(|t| Value::Text(t.name().to_owned())).collect()),
    from |v| {
        let target = |name: &Value| LoraTarget::from_name(name.as_text());
        match v {
            Value::Text(_) => Self::ALL,
            list => list.as_list().iter().filter_map(target).collect(),
        }
    }
);

impl Lora {
    /// No adapters.
    pub const NONE: Self = Self {
        rank: 0,
        alpha: 8.0,
        dropout: 0.0,
        targets: LoraTargets::USUAL,
        quant_type: QuantType::None,
        double_quant: true,
    };

    /// Whether the model has adapters, so that its weights are frozen.
    pub const fn is_on(&self) -> bool {
        self.rank > 0
    }

    /// Whether the weights beside adapters are frozen in four bits.
    pub const fn is_quantised(&self) -> bool {
        self.is_on() && matches!(self.quant_type, QuantType::Nf4)
    }

    /// Factor of the adapters' output.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// Whether the recipe has adapters.
fn is_on(recipe: &Recipe) -> bool {
    recipe.model.lora.is_on()
}

/// Whether the recipe has weights in four bits.
fn is_quantised(recipe: &Recipe) -> bool {
    recipe.model.lora.is_quantised()
}

/// Elements that share a scale.
const BLOCK_LEN: usize = 64;

/// Refuses a linear layer with rows that are no multiple of a block, in the shards of a model.
fn rows_are_blocks(c: &RuleContext<'_>) -> Option<ConfigError> {
    const WIDTH: &str = "model.width";
    const FFN: &str = "model.ffn";
    const HEADS: &str = "model.heads";
    const SHARDS: &str = "numerics.invariant_tensor_up_to";
    if !is_quantised(c.recipe) || !c.all_valid(&[WIDTH, FFN, HEADS, SHARDS, "parallel.tensor"]) {
        return None;
    }
    let (model, shards) = (&c.model, c.num_tensor_shards());
    let queries = model.heads * model.head_dim();
    let broken = |len: usize, shards: usize| !len.is_multiple_of(BLOCK_LEN * shards);
    let next = |len: usize, shards: usize| len.next_multiple_of(BLOCK_LEN * shards);
    let (key, len, shards, fix) = if broken(model.width, 1) {
        (WIDTH, model.width, 1, next(model.width, 1).to_string())
    } else if broken(model.ffn, shards) {
        (FFN, model.ffn, shards, next(model.ffn, shards).to_string())
    } else if broken(queries, shards) {
        // A multiple of a block's length in every shard has whole blocks whatever the heads' size.
        let most = model.heads + BLOCK_LEN * shards;
        let heads = (model.heads..=most).find(|n| !broken(n * model.head_dim(), shards))?;
        (HEADS, queries, shards, format!("{heads}, of which each has {}", model.head_dim()))
    } else {
        return None;
    };
    let rule = match shards {
        1 => format!("gives rows of {len} weights, and a block of nf4 has {BLOCK_LEN}"),
        _ => format!(
            "gives rows of {len} weights, of which {shards} tensor shards do not have blocks of \
             {BLOCK_LEN} each"
        ),
    };
    let fix = format!("try {key} = {fix}, or finetune.quant_type = \"none\"");
    Some(c.error_about(&["finetune.quant_type", key], rule, fix))
}

const WITHOUT_RANK: &str = "has no effect without adapters";
const RANK: &str = "finetune.lora_rank = 8";

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["finetune.lora_targets", "finetune.lora_rank"], |c| {
        let Lora { rank, targets, .. } = c.model.lora;
        let rule = format!("names no layer for the adapters of finetune.lora_rank = {rank}");
        c.refuse(rank > 0 && targets == LoraTargets::NONE, rule, r#"["q_proj", "v_proj"]"#)
    }),
    // Whoever sets one of these wants adapters, and would train all weights instead.
    Rule::new(&["finetune.lora_alpha", "finetune.lora_rank"], |c| {
        let Lora { rank, alpha, .. } = c.model.lora;
        let differs = alpha.to_bits() != Lora::NONE.alpha.to_bits();
        c.refuse(rank == 0 && differs, WITHOUT_RANK, RANK)
    }),
    Rule::new(&["finetune.lora_dropout", "finetune.lora_rank"], |c| {
        let Lora { rank, dropout, .. } = c.model.lora;
        c.refuse(rank == 0 && dropout > 0.0, WITHOUT_RANK, RANK)
    }),
    Rule::new(&["finetune.lora_targets", "finetune.lora_rank"], |c| {
        let Lora { rank, targets, .. } = c.model.lora;
        c.refuse(rank == 0 && targets != LoraTargets::USUAL, WITHOUT_RANK, RANK)
    }),
    Rule::new(&["finetune.quant_type", "finetune.lora_rank"], |c| {
        let Lora { rank, quant_type, .. } = c.model.lora;
        let rule = "freezes weights, and there are no adapters to train";
        c.refuse(rank == 0 && quant_type != QuantType::None, rule, RANK)
    }),
    Rule::new(&["finetune.double_quant", "finetune.quant_type"], |c| {
        let Lora { quant_type, double_quant, .. } = c.model.lora;
        let rule = "has no effect without quantised weights";
        let fix = "finetune.quant_type = \"nf4\"";
        c.refuse(quant_type == QuantType::None && !double_quant, rule, fix)
    }),
    Rule::new(&["finetune.quant_type"], rows_are_blocks),
    Rule::new(&["finetune.quant_type", "parallel.partition"], |c| {
        let is_measured = c.recipe.parallel.partition == Partition::Measured;
        let rule = "has no weights when parallel.partition = \"measured\" runs the layers";
        let fix = "set parallel.partition = \"flops\"";
        (is_quantised(c.recipe) && is_measured).then(|| c.error(rule, fix))
    }),
    Rule::new(&["finetune.adapter", "finetune.lora_rank"], |c| {
        let is_unused = !c.adapter.is_empty() && !is_on(c.recipe);
        is_unused.then(|| c.error("needs finetune.lora_rank of 1 or more", "remove it"))
    }),
]);
