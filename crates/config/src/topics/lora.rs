//! Low-rank adaptation (LoRA, Hu et al. 2021): the weights of the model are frozen, and small
//! adapters beside its linear layers are trained. Names and defaults are those of Hugging Face's
//! `peft`.

use super::Recipe;
use crate::field::field;
use crate::rule::{Rule, Rules};
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

        /// Linear layers with adapters.
        targets as lora_targets: LoraTargets = ["q_proj", "v_proj"], in_identity_when(is_on),
            when("model.family", LLAMA);

        /// Folder of a peft adapter whose matrices are the initial ones; the other keys of this
        /// table follow from it (the dropout may differ).
        key adapter at adapter: String = none, not_empty(), when("model.family", LLAMA);
    }
}

choices! {
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
    LoraTargets: ValueType::List { of: &ValueType::Choice(LoraTarget::NAMES), max: 64 },
    blank Self::NONE,
    to |targets| Value::List(targets.iter().map(|t| Value::Text(t.name().to_owned())).collect()),
    from |v| {
        let target = |name: &Value| LoraTarget::from_name(name.as_text());
        v.as_list().iter().filter_map(target).collect()
    }
);

impl Lora {
    /// No adapters.
    pub const NONE: Self = Self { rank: 0, alpha: 8.0, dropout: 0.0, targets: LoraTargets::USUAL };

    /// Whether the model has adapters, so that its weights are frozen.
    pub const fn is_on(&self) -> bool {
        self.rank > 0
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
    Rule::new(&["finetune.adapter", "finetune.lora_rank"], |c| {
        let is_unused = !c.adapter.is_empty() && !is_on(c.recipe);
        is_unused.then(|| c.error("needs finetune.lora_rank of 1 or more", "remove it"))
    }),
]);
