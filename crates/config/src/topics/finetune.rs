//! Fine-tuning on conversations, with the loss on answers, on preferences (DPO, Rafailov et al.
//! 2023), and from a teacher (knowledge distillation, Hinton et al. 2015).

use super::data_source::{DataFormat, Documents, EpochEnd, Placement, Source};
use super::{Lora, Partition, Recipe, SyncMode};
use crate::key::{Section, count, join};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::value_type::Bound::{Closed, Open};

topic! {
    /// Fine-tuning on conversations and preferences.
    pub struct Finetune at finetune, among "finetune" {
        /// Parameters and loss: full trains the weights, lora the adapters of
        /// finetune.lora_rank, dpo either of them on preferences (direct preference optimization):
        /// JSON Lines or Parquet with prompt, chosen and rejected; distill either of them on the
        /// probabilities of finetune.teacher (knowledge distillation).
        method: FinetuneMethod = ("lora with finetune.lora_rank, else full", method),
            in_identity_unless_default();

        /// Strength of finetune.method = dpo: how far the model may leave its reference, the model
        /// before training. Smaller is farther.
        beta: f64 = 0.1, float(Open(0.0), Closed(1e3)),
            in_identity_when(|r| r.finetune.method == FinetuneMethod::Dpo);

        /// Folder of the model that finetune.method = distill learns from, of Hugging Face or of a
        /// finished run, with the vocabulary of the student.
        teacher: String = "", in_identity_unless_default();

        /// Model keys of finetune.teacher as TOML; they follow from the folder.
        teacher_model: String = "", in_identity_unless_default();

        /// Temperature of finetune.method = distill: the probabilities of both models are those of
        /// their logits divided by it.
        temperature: f64 = 2.0, float(Closed(0.01), Closed(1e3)), in_identity_when(distills);

        /// Weight h of the targets in the loss of finetune.method = distill:
        /// h x cross-entropy + (1 - h) x temperature^2 x KL(teacher, student).
        hard_weight: f64 = 0.5, float(Closed(0.0), Closed(1.0)), in_identity_when(distills);

        /// Tokens that the loss counts with data.format = chat: answers are the turns of the
        /// assistant, with the tokens that end them; all are also the prompts.
        loss: FinetuneLoss = "answers", in_identity_unless_default();

        /// Chat template of data.format = chat: chatml, or the path of a Jinja file; empty takes
        /// the template of the tokenizer's folder.
        chat_template: String = "", in_identity_unless_default();
    }
}

/// The method without preferences.
fn method(recipe: &Recipe) -> FinetuneMethod {
    if recipe.model.lora.is_on() { FinetuneMethod::Lora } else { FinetuneMethod::Full }
}

fn distills(recipe: &Recipe) -> bool {
    recipe.finetune.distills()
}

impl Finetune {
    /// Whether the loss has a teacher.
    pub const fn distills(&self) -> bool {
        matches!(self.method, FinetuneMethod::Distill)
    }

    /// Whether sequences are pairs of a chosen and a rejected one.
    pub const fn has_pairs(&self) -> bool {
        matches!(self.method, FinetuneMethod::Dpo)
    }
}

choices! {
    /// Parameters and loss of fine-tuning.
    FinetuneMethod {
        /// All weights.
        Full = "full",
        /// Low-rank adapters.
        Lora = "lora",
        /// Either of them, on preferences.
        Dpo = "dpo",
        /// Either of them, from a teacher.
        Distill = "distill",
    }

    /// Tokens of a conversation that the loss counts.
    FinetuneLoss {
        /// Turns of the assistant.
        Answers = "answers",
        /// Every token.
        All = "all",
    }
}

/// Keys of fine-tuning, and of the adapters that it may train.
const PARTS: &[&[crate::key::Key]] = &[Lora::KEYS, Finetune::KEYS];

const KEYS: &[crate::key::Key] = &join::<{ count(PARTS) }>(PARTS);

/// The table of both.
pub(crate) const TABLE: Section = Section::new(
    "finetune",
    " Fine-tuning: conversations, preferences (DPO), distillation, and low-rank adapters (LoRA).",
    KEYS,
);

const WITHOUT_CHAT: &str = "has no effect on text";
const CHAT: &str = "data.format = \"chat\"";

/// Most logits of a micro-batch of pairs, or of a student and its teacher each, which are kept
/// whole.
const MAX_LOGITS: usize = 1 << 27;

const BETA: f64 = 0.1;
const TEMPERATURE: f64 = 2.0;
const HARD_WEIGHT: f64 = 0.5;
const DISTILL: &str = "finetune.method = \"distill\"";

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(&["finetune.method", "finetune.lora_rank"], |c| {
        let (method, is_on) = (c.recipe.finetune.method, c.model.lora.is_on());
        let (rule, fix) = match (method, is_on) {
            (FinetuneMethod::Lora, false) => {
                ("has no adapters to train", "set finetune.lora_rank = 8")
            }
            (FinetuneMethod::Full, true) => {
                ("trains the weights, which finetune.lora_rank freezes", "\"lora\"")
            }
            _ => return None,
        };
        Some(c.error(rule, fix))
    }),
    Rule::new(&["finetune.beta", "finetune.method"], |c| {
        let is_set = c.recipe.finetune.beta.to_bits() != BETA.to_bits();
        let rule = "has no effect without preferences";
        c.refuse(is_set && !c.recipe.finetune.has_pairs(), rule, "finetune.method = \"dpo\"")
    }),
    Rule::new(&["finetune.method", "data.format"], |c| {
        let is_text = c.data.format == DataFormat::Text;
        let rule = "learns from conversations";
        (c.recipe.finetune.has_pairs() && is_text).then(|| c.error(rule, CHAT))
    }),
    Rule::new(&["finetune.method", "finetune.loss"], |c| {
        let is_all = c.recipe.finetune.loss == FinetuneLoss::All;
        let rule = "compares answers";
        let fix = "set finetune.loss = \"answers\"";
        (c.recipe.finetune.has_pairs() && is_all).then(|| c.error(rule, fix))
    }),
    Rule::new(&["train.microbatch", "finetune.method"], |c| {
        let is_odd = c.train.microbatch_size % 2 == 1;
        let rule = "divides pairs of sequences, which finetune.method = \"dpo\" compares";
        let even = (c.train.microbatch_size + 1).to_string();
        c.refuse(c.recipe.finetune.has_pairs() && is_odd, rule, &even)
    }),
    Rule::new(&["train.microbatch", "model.context", "model.vocab", "finetune.method"], |c| {
        let rows = c.train.microbatch_size.saturating_mul(c.model.context);
        let is_large = rows.saturating_mul(c.model.vocab) > MAX_LOGITS;
        let finetune = &c.recipe.finetune;
        let rule = format!(
            "has more than {MAX_LOGITS} logits, which finetune.method = \"{}\" keeps at a time",
            finetune.method.name()
        );
        let fix = "a shorter model.context or a smaller micro-batch";
        let keeps_all = finetune.has_pairs() || finetune.distills();
        (keeps_all && is_large).then(|| c.error(rule, fix))
    }),
    Rule::new(&["finetune.method", "data.last_batch"], |c| {
        let is_padded = c.data.last_batch == EpochEnd::Pad;
        let rule = "counts pairs, and data.last_batch = \"pad\" fills batches with none";
        let fix = "set data.last_batch = \"wrap\"";
        (c.recipe.finetune.has_pairs() && is_padded).then(|| c.error(rule, fix))
    }),
    Rule::new(&["finetune.method", "data.placement"], |c| {
        let is_shared = c.data.placement == Placement::Shared;
        let rule = "needs the reference of every pair on every worker";
        let fix = "set data.placement = \"shared\"";
        (c.recipe.finetune.has_pairs() && !is_shared).then(|| c.error(rule, fix))
    }),
    Rule::new(&["finetune.method", "sync.mode"], |c| {
        let is_synchronous = c.recipe.sync.mode == SyncMode::AllReduce;
        let rule = "is supported where all workers hold one model";
        let fix = "set sync.mode = \"all-reduce\"";
        let is_other = c.recipe.finetune.has_pairs() || c.recipe.finetune.distills();
        (is_other && !is_synchronous).then(|| c.error(rule, fix))
    }),
    Rule::new(&["finetune.teacher", "finetune.method"], |c| {
        let (teacher, distills) = (&c.recipe.finetune.teacher, c.recipe.finetune.distills());
        let (rule, fix) = match (distills, teacher.is_empty()) {
            (true, true) => ("names no model to learn from", "the folder of a model"),
            (false, false) => ("has no effect without distillation", DISTILL),
            _ => return None,
        };
        Some(c.error(rule, fix))
    }),
    Rule::new(&["finetune.temperature", "finetune.method"], |c| {
        let is_set = c.recipe.finetune.temperature.to_bits() != TEMPERATURE.to_bits();
        let rule = "has no effect without a teacher";
        c.refuse(is_set && !c.recipe.finetune.distills(), rule, DISTILL)
    }),
    Rule::new(&["finetune.hard_weight", "finetune.method"], |c| {
        let is_set = c.recipe.finetune.hard_weight.to_bits() != HARD_WEIGHT.to_bits();
        let rule = "has no effect without a teacher";
        c.refuse(is_set && !c.recipe.finetune.distills(), rule, DISTILL)
    }),
    Rule::new(&["finetune.method", "model.family"], |c| {
        let rule = "learns the probabilities of tokens";
        let is_problem = c.model.family.is_problem();
        (c.recipe.finetune.distills() && is_problem).then(|| c.error(rule, "\"full\""))
    }),
    Rule::new(&["finetune.method", "numerics.invariant_tensor_up_to"], |c| {
        let rule = "needs the whole vocabulary on a rank, and the recipe divides it among tensor-\
                    parallel ranks";
        let fix = "set parallel.tensor = 1 and numerics.invariant_tensor_up_to = 1";
        let is_sharded = c.recipe.num_tensor_shards() > 1;
        (c.recipe.finetune.distills() && is_sharded).then(|| c.error(rule, fix))
    }),
    Rule::new(&["finetune.method", "parallel.partition"], |c| {
        let is_measured = c.recipe.parallel.partition == Partition::Measured;
        let rule = "has no teacher while parallel.partition = \"measured\" times the blocks";
        let fix = "set parallel.partition = \"uniform\"";
        (c.recipe.finetune.distills() && is_measured).then(|| c.error(rule, fix))
    }),
    Rule::new(&["finetune.method", "sync.stragglers"], |c| {
        let loses = c.recipe.sync.stragglers.policy.loses_microbatches();
        let rule = "counts pairs, and a policy that leaves out slow workers counts tokens";
        let fix = "set sync.stragglers = \"wait\"";
        (c.recipe.finetune.has_pairs() && loses).then(|| c.error(rule, fix))
    }),
    Rule::new(&["finetune.loss", "data.format"], |c| {
        let is_set = c.recipe.finetune.loss != FinetuneLoss::Answers;
        c.refuse(is_set && c.data.format == DataFormat::Text, WITHOUT_CHAT, CHAT)
    }),
    Rule::new(&["finetune.chat_template", "data.format"], |c| {
        let is_set = !c.recipe.finetune.chat_template.is_empty();
        c.refuse(is_set && c.data.format == DataFormat::Text, WITHOUT_CHAT, CHAT)
    }),
    Rule::new(&["data.format", "data.source"], |c| {
        let is_chat = c.data.format == DataFormat::Chat;
        // A mixture has a rule of its own.
        let has_none = !matches!(c.data.source, Source::Path(_)) && !c.data.mixture.is_on();
        let rule =
            format!("needs conversations, which data.source = {} has none of", c.data.source);
        (is_chat && has_none).then(|| c.error(rule, "set data.source = \"chat.jsonl\""))
    }),
    Rule::new(&["data.documents", "data.format"], |c| {
        let is_chat = c.data.format == DataFormat::Chat;
        let rule = "would let conversations attend to each other";
        let fix = "\"masked\" or \"padded\"";
        c.refuse(is_chat && c.data.documents == Documents::Packed, rule, fix)
    }),
    Rule::new(&["data.documents", "finetune.method"], |c| {
        let is_masked = c.data.documents == Documents::Masked;
        let rule = "packs conversations, and finetune.method = \"dpo\" compares whole sequences";
        c.refuse(c.recipe.finetune.has_pairs() && is_masked, rule, "\"padded\"")
    }),
    Rule::new(&["data.placement", "data.format"], |c| {
        let is_chat = c.data.format == DataFormat::Chat;
        let rule = "divides a text, and conversations are read as a whole";
        c.refuse(is_chat && c.data.placement == Placement::Partitioned, rule, "\"shared\"")
    }),
]);
