//! Models from Hugging Face's `config.json`: GPT-2, Llama, Mistral, Mixtral, Qwen2, Qwen3, OLMo 2,
//! Phi-3, Gemma 2, GPT-NeoX, BLOOM, and DeepSeek-V2 and V3.
//!
//! Only fields that change shapes are read. Rotary positions have no parameters, so any
//! `rope_scaling` is accepted. A field that changes the architecture in a way the cost model does
//! not have is refused by name, since the parameters would be miscounted.

use super::{Experts, Latent, Model, QueryKeyNorms};
use serde::{Deserialize, Deserializer};

/// Longest sequence that a configuration implies: most models are trained on shorter ones than they
/// are extended to.
const MAX_DEFAULT_CONTEXT: u64 = 8192;

/// Width of a head without the field, in families where it is not the hidden size over the heads.
const HEAD_DIMS: &[(&str, u64)] = &[("qwen3", 128), ("gemma2", 256)];

/// Key-value heads without the field, in families where they are not as many as query heads.
const KEY_VALUE_HEADS: &[(&str, u64)] = &[
    ("mistral", 8),
    ("mixtral", 8),
    ("qwen2", 32),
    ("qwen3", 32),
    ("qwen3_moe", 4),
    ("gemma2", 4),
    ("deepseek_v3", 128),
];

/// Families that are read, by `model_type`.
pub const MODEL_TYPES: [&str; 14] = [
    "gpt2",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "olmo2",
    "phi3",
    "gemma2",
    "gpt_neox",
    "bloom",
    "deepseek_v2",
    "deepseek_v3",
];

/// Fields of a `config.json` that matter to a plan.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct HuggingFaceConfig {
    /// Family of the model.
    pub model_type: String,
    /// Layers.
    pub num_hidden_layers: Option<u64>,
    /// Hidden size.
    pub hidden_size: Option<u64>,
    /// Query heads.
    pub num_attention_heads: Option<u64>,
    /// Key-value heads; `null` gives every query head its own, and without the field the family
    /// decides.
    pub num_key_value_heads: KeyValueHeads,
    /// Width of a head; hidden size over heads without it.
    pub head_dim: Option<u64>,
    /// Inner width of the feed-forward part.
    pub intermediate_size: Option<u64>,
    /// Vocabulary size.
    pub vocab_size: Option<u64>,
    /// Layers, in the name of GPT-2 and BLOOM for them.
    pub n_layer: Option<u64>,
    /// Hidden size, in an old name of BLOOM's.
    pub n_embed: Option<u64>,
    /// Query heads, in the name of GPT-2 and BLOOM for them.
    pub n_head: Option<u64>,
    /// Hidden size, in GPT-2's name for it.
    pub n_embd: Option<u64>,
    /// Inner width of the feed-forward part, in GPT-2's name for it.
    pub n_inner: Option<u64>,
    /// Positions of GPT-2, each with a row of a table.
    pub n_positions: Option<u64>,
    /// Sequence length of BLOOM's training.
    pub seq_length: Option<u64>,
    /// Longest sequence.
    pub max_position_embeddings: Option<u64>,
    /// Scaling of rotary positions.
    pub rope_scaling: Option<RopeScaling>,
    /// Activation function.
    pub hidden_act: Option<String>,
    /// Activation function, in Gemma's name for it.
    pub hidden_activation: Option<String>,
    /// Whether the output projection shares the embedding.
    pub tie_word_embeddings: Option<bool>,
    /// Whether attention projections have biases; without the field the family decides.
    pub attention_bias: Option<bool>,
    /// Whether feed-forward projections have biases.
    pub mlp_bias: bool,
    /// Experts of Mixtral.
    pub num_local_experts: Option<u64>,
    /// Experts of Qwen3.
    pub num_experts: Option<u64>,
    /// Routed experts of DeepSeek.
    pub n_routed_experts: Option<u64>,
    /// Shared experts of DeepSeek.
    pub n_shared_experts: Option<u64>,
    /// Experts per token.
    pub num_experts_per_tok: Option<u64>,
    /// Inner width of an expert.
    pub moe_intermediate_size: Option<u64>,
    /// Leading layers without experts.
    pub first_k_dense_replace: Option<u64>,
    /// Distance of layers with experts.
    pub moe_layer_freq: Option<u64>,
    /// Distance of layers with experts, in Qwen's name for it.
    pub decoder_sparse_step: Option<u64>,
    /// Layers without experts.
    pub mlp_only_layers: Vec<u64>,
    /// Selection of experts; `noaux_tc` has a bias per expert.
    pub topk_method: Option<String>,
    /// Rank of the query projection; a full projection without it.
    pub q_lora_rank: Option<u64>,
    /// Rank of the joint key and value projection.
    pub kv_lora_rank: Option<u64>,
    /// Head width without rotary positions.
    pub qk_nope_head_dim: Option<u64>,
    /// Head width with rotary positions.
    pub qk_rope_head_dim: Option<u64>,
    /// Head width of values.
    pub v_head_dim: Option<u64>,
}

/// Scaling of rotary positions.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub struct RopeScaling {
    /// Sequence length before the scaling.
    pub original_max_position_embeddings: Option<u64>,
}

/// Number of key-value heads in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyValueHeads {
    /// The field is absent.
    #[default]
    Absent,
    /// The field is `null`.
    AsQueryHeads,
    /// A number.
    Number(u64),
}

impl<'de> Deserialize<'de> for KeyValueHeads {
    fn deserialize<D: Deserializer<'de>>(value: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(value)?.map_or(Self::AsQueryHeads, Self::Number))
    }
}

impl HuggingFaceConfig {
    /// The model of the configuration, or every field that keeps it from being read.
    pub fn model(&self, name: &str) -> Result<Model, Vec<String>> {
        if !MODEL_TYPES.contains(&self.model_type.as_str()) {
            let read = MODEL_TYPES.join(", ");
            let kind = &self.model_type;
            return Err(vec![format!("model_type = {kind:?} is not read; try one of {read}")]);
        }
        let mut fields = Fields { errors: self.differences() };
        let layers = fields.need("num_hidden_layers", self.num_hidden_layers.or(self.n_layer));
        let width = self.hidden_size.or(self.n_embed).or(self.n_embd);
        let width = fields.need("hidden_size", width);
        let heads = fields.need("num_attention_heads", self.num_attention_heads.or(self.n_head));
        let is_bloom = self.model_type == "bloom";
        let is_gpt2 = self.model_type == "gpt2";
        // BLOOM has no field for either, GPT-2 names for both.
        let has_own = is_bloom || is_gpt2;
        let own_length = if is_gpt2 { self.n_positions } else { self.seq_length.or(Some(2048)) };
        let own_ffn = self.n_inner.filter(|_| is_gpt2).unwrap_or(4 * width);
        let ffn = self.intermediate_size.or(has_own.then_some(own_ffn));
        let ffn = fields.need("intermediate_size", ffn);
        let vocab = fields.need("vocab_size", self.vocab_size);
        let longest = self.max_position_embeddings.or(own_length.filter(|_| has_own));
        let longest = fields.need("max_position_embeddings", longest);
        let unscaled = self.rope_scaling.as_ref().and_then(|r| r.original_max_position_embeddings);
        let context = unscaled.unwrap_or(longest).min(longest).min(MAX_DEFAULT_CONTEXT);
        let is_gemma = self.model_type == "gemma2";
        let default = |of_families: &[(&str, u64)]| {
            let found = of_families.iter().find(|(model_type, _)| *model_type == self.model_type);
            found.map(|(_, value)| *value)
        };
        let kv_heads = match self.num_key_value_heads {
            KeyValueHeads::Absent => default(KEY_VALUE_HEADS).unwrap_or(heads),
            KeyValueHeads::AsQueryHeads => heads,
            KeyValueHeads::Number(number) => number,
        };
        let llama = Model::llama(name, layers, width, heads, heads, ffn).reading(vocab, context);
        let is_gpt = has_own || self.model_type == "gpt_neox";
        let model = Model {
            gated: !is_gpt,
            biases: is_gpt,
            kv_heads,
            head_dim: self.head_dim.or(default(HEAD_DIMS)).unwrap_or(width / heads.max(1)),
            tied: self.tie_word_embeddings.unwrap_or(is_gemma || has_own),
            positions: if is_gpt2 { longest } else { llama.positions },
            extra_norms: u64::from(is_bloom),
            query_key_value_biases: self.model_type == "qwen2",
            query_key_norms: match self.model_type.as_str() {
                "olmo2" => QueryKeyNorms::Whole,
                kind if kind.starts_with("qwen3") => QueryKeyNorms::Heads,
                _ => QueryKeyNorms::None,
            },
            layer_norms: if is_gemma { 4 } else { 2 },
            experts: self.experts(&mut fields),
            ..llama
        };
        let latent = self.latent(&mut fields);
        if !fields.errors.is_empty() {
            return Err(fields.errors);
        }
        Ok(match latent {
            Some(latent) => Model { head_dim: latent.plain_dim, latent: Some(latent), ..model },
            None => model,
        })
    }

    /// Fields with values that another architecture has.
    fn differences(&self) -> Vec<String> {
        let kind = self.model_type.as_str();
        let usual = if kind == "gemma2" { "gelu_pytorch_tanh" } else { "silu" };
        let activation = self.hidden_activation.as_deref().or(self.hidden_act.as_deref());
        let is_gpt = ["gpt2", "gpt_neox", "bloom"].contains(&kind);
        let mut errors = Vec::new();
        let mut differs = |field: &str, has: String, expected: &str| {
            errors.push(format!("{field} = {has} differs from {kind}'s; try {expected}"));
        };
        if let Some(other) = activation.filter(|activation| *activation != usual && !is_gpt) {
            differs("hidden_act", format!("{other:?}"), usual);
        }
        let attention_bias = self.attention_bias.unwrap_or(is_gpt);
        for (field, value, own) in
            [("attention_bias", attention_bias, is_gpt), ("mlp_bias", self.mlp_bias, false)]
        {
            if value != own {
                differs(field, value.to_string(), if own { "true" } else { "false" });
            }
        }
        let steps = [
            ("moe_layer_freq", self.moe_layer_freq),
            ("decoder_sparse_step", self.decoder_sparse_step),
        ];
        for (field, step) in steps {
            if let Some(step) = step.filter(|step| *step != 1) {
                differs(field, step.to_string(), "1");
            }
        }
        if !self.mlp_only_layers.is_empty() {
            differs("mlp_only_layers", format!("{:?}", self.mlp_only_layers), "[]");
        }
        let has_experts = self.num_local_experts.or(self.num_experts).or(self.n_routed_experts);
        let may_have = ["mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"].contains(&kind);
        if let Some(experts) = has_experts.filter(|_| !may_have) {
            differs("num_experts", experts.to_string(), "a model_type with experts");
        }
        errors
    }

    /// Experts of the families that have them.
    fn experts(&self, fields: &mut Fields) -> Option<Experts> {
        let is_deepseek = self.model_type.starts_with("deepseek");
        let (field, num, ffn) = match self.model_type.as_str() {
            "mixtral" => ("num_local_experts", self.num_local_experts, self.intermediate_size),
            "qwen3_moe" => ("num_experts", self.num_experts, self.moe_intermediate_size),
            _ if is_deepseek => {
                ("n_routed_experts", self.n_routed_experts, self.moe_intermediate_size)
            }
            _ => return None,
        };
        let ffn = fields.need("moe_intermediate_size", ffn);
        let per_token = fields.need("num_experts_per_tok", self.num_experts_per_tok);
        Some(Experts {
            shared_ffn: self.n_shared_experts.unwrap_or(0) * ffn,
            dense_layers: self.first_k_dense_replace.unwrap_or(0),
            router_bias: self.topk_method.as_deref() == Some("noaux_tc"),
            ..Experts::routed(fields.need(field, num), per_token, ffn)
        })
    }

    /// Latent attention of DeepSeek.
    fn latent(&self, fields: &mut Fields) -> Option<Latent> {
        self.model_type.starts_with("deepseek").then(|| Latent {
            query_rank: self.q_lora_rank.unwrap_or(0),
            key_value_rank: fields.need("kv_lora_rank", self.kv_lora_rank),
            plain_dim: fields.need("qk_nope_head_dim", self.qk_nope_head_dim),
            rotary_dim: fields.need("qk_rope_head_dim", self.qk_rope_head_dim),
            value_dim: fields.need("v_head_dim", self.v_head_dim),
        })
    }
}

/// Errors of a configuration being read.
struct Fields {
    errors: Vec<String>,
}

impl Fields {
    /// A number that the family needs, above zero.
    fn need(&mut self, field: &str, value: Option<u64>) -> u64 {
        match value {
            Some(value) if value > 0 => value,
            Some(_) => {
                self.errors.push(format!("{field} = 0 must be at least 1; try the model's own"));
                1
            }
            None => {
                self.errors.push(format!("{field} is missing; try the model's own config.json"));
                1
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration from lines of `field = value`, as published on the models' pages.
    fn read(text: &str) -> Result<Model, Vec<String>> {
        let config: HuggingFaceConfig = toml::from_str(text).expect("fields and values");
        config.model("mine")
    }

    const LLAMA: &str = "model_type = \"llama\"\nhidden_act = \"silu\"\nhidden_size = 4096\n\
        intermediate_size = 14336\nmax_position_embeddings = 131072\nnum_attention_heads = 32\n\
        num_hidden_layers = 32\nnum_key_value_heads = 8\nvocab_size = 128256\n\
        tie_word_embeddings = false\n\
        rope_scaling = { factor = 8.0, rope_type = \"llama3\", \
        original_max_position_embeddings = 8192 }\n";

    #[test]
    fn parameters_are_exactly_those_of_the_published_weights() {
        let qwen2 = "model_type = \"qwen2\"\nhidden_size = 3584\nintermediate_size = 18944\n\
            max_position_embeddings = 131072\nnum_attention_heads = 28\nnum_hidden_layers = 28\n\
            num_key_value_heads = 4\nvocab_size = 152064\n";
        let qwen3 = "model_type = \"qwen3\"\nhidden_size = 4096\nintermediate_size = 12288\n\
            max_position_embeddings = 40960\nnum_attention_heads = 32\nnum_hidden_layers = 36\n\
            num_key_value_heads = 8\nhead_dim = 128\nvocab_size = 151936\n";
        let qwen3_moe = "model_type = \"qwen3_moe\"\nhidden_size = 2048\n\
            intermediate_size = 6144\nmax_position_embeddings = 40960\nnum_attention_heads = 32\n\
            num_hidden_layers = 48\nnum_key_value_heads = 4\nhead_dim = 128\n\
            vocab_size = 151936\nnum_experts = 128\nnum_experts_per_tok = 8\n\
            moe_intermediate_size = 768\ndecoder_sparse_step = 1\n";
        let mistral = "model_type = \"mistral\"\nhidden_size = 4096\nintermediate_size = 14336\n\
            max_position_embeddings = 32768\nnum_attention_heads = 32\nnum_hidden_layers = 32\n\
            num_key_value_heads = 8\nvocab_size = 32000\nsliding_window = 4096\n";
        let mixtral = mistral.replace("mistral", "mixtral")
            + "num_local_experts = 8\nnum_experts_per_tok = 2\n";
        let gemma2 = "model_type = \"gemma2\"\nhidden_size = 3584\nintermediate_size = 14336\n\
            hidden_activation = \"gelu_pytorch_tanh\"\nmax_position_embeddings = 8192\n\
            num_attention_heads = 16\nnum_hidden_layers = 42\nnum_key_value_heads = 8\n\
            head_dim = 256\nvocab_size = 256000\n";
        let olmo2 = "model_type = \"olmo2\"\nhidden_size = 4096\nintermediate_size = 11008\n\
            max_position_embeddings = 4096\nnum_attention_heads = 32\nnum_hidden_layers = 32\n\
            vocab_size = 100352\n";
        let phi3 = "model_type = \"phi3\"\nhidden_size = 3072\nintermediate_size = 8192\n\
            max_position_embeddings = 4096\nnum_attention_heads = 32\nnum_hidden_layers = 32\n\
            vocab_size = 32064\nsliding_window = 2047\n";
        let pythia = "model_type = \"gpt_neox\"\nhidden_act = \"gelu\"\nhidden_size = 768\n\
            intermediate_size = 3072\nmax_position_embeddings = 2048\n\
            num_attention_heads = 12\nnum_hidden_layers = 12\nvocab_size = 50304\n\
            rotary_pct = 0.25\nuse_parallel_residual = true\n";
        let gpt2 = "model_type = \"gpt2\"\nn_embd = 768\nn_head = 12\nn_layer = 12\n\
            n_positions = 1024\nvocab_size = 50257\nactivation_function = \"gelu_new\"\n";
        let bloom = "model_type = \"bloom\"\nhidden_size = 1024\nn_head = 16\nn_layer = 24\n\
            vocab_size = 250880\nseq_length = 2048\n";
        let deepseek_v3 = "model_type = \"deepseek_v3\"\nhidden_size = 7168\n\
            intermediate_size = 18432\nmax_position_embeddings = 163840\n\
            num_attention_heads = 128\nnum_key_value_heads = 128\nnum_hidden_layers = 61\n\
            vocab_size = 129280\nn_routed_experts = 256\nn_shared_experts = 1\n\
            num_experts_per_tok = 8\nmoe_intermediate_size = 2048\nfirst_k_dense_replace = 3\n\
            moe_layer_freq = 1\ntopk_method = \"noaux_tc\"\nq_lora_rank = 1536\n\
            kv_lora_rank = 512\nqk_nope_head_dim = 128\nqk_rope_head_dim = 64\n\
            v_head_dim = 128\n";
        let deepseek_v2_lite = "model_type = \"deepseek_v2\"\nhidden_size = 2048\n\
            intermediate_size = 10944\nmax_position_embeddings = 163840\n\
            num_attention_heads = 16\nnum_key_value_heads = 16\nnum_hidden_layers = 27\n\
            vocab_size = 102400\nn_routed_experts = 64\nn_shared_experts = 2\n\
            num_experts_per_tok = 6\nmoe_intermediate_size = 1408\nfirst_k_dense_replace = 1\n\
            topk_method = \"greedy\"\nkv_lora_rank = 512\nqk_nope_head_dim = 128\n\
            qk_rope_head_dim = 64\nv_head_dim = 128\n";
        for (text, params) in [
            (LLAMA, 8_030_261_248),
            (gpt2, 124_439_808),
            (qwen2, 7_615_616_512),
            (qwen3, 8_190_735_360),
            (qwen3_moe, 30_532_122_624),
            (mistral, 7_241_732_096),
            (&mixtral, 46_702_792_704),
            (gemma2, 9_241_705_984),
            (olmo2, 7_298_617_344),
            (phi3, 3_821_079_552),
            (pythia, 162_322_944),
            (bloom, 559_214_592),
            (deepseek_v3, 671_026_419_200),
            (deepseek_v2_lite, 15_706_484_224),
        ] {
            assert_eq!(read(text).expect(text).num_params(), params, "{text}");
        }
        assert_eq!(read(LLAMA).expect("a model").context, 8192, "before the scaling");
    }

    #[test]
    fn absent_fields_have_the_defaults_of_the_family_and_null_follows_the_query_heads() {
        let json = |model_type: &str, rest: &str| {
            let text = format!(
                "{{\"model_type\": \"{model_type}\", \"hidden_size\": 2048, \
                 \"intermediate_size\": 64, \"max_position_embeddings\": 64, \
                 \"num_attention_heads\": 64, \"num_hidden_layers\": 1, \"vocab_size\": 64, \
                 \"num_local_experts\": null, \"num_experts\": null{rest}}}"
            );
            let config: HuggingFaceConfig = serde_json::from_str(&text).expect("it is JSON");
            let model = config.model("mine").expect("all that it needs");
            (model.kv_heads, model.head_dim)
        };
        for (model_type, kv_heads, head_dim) in [
            ("llama", 64, 32),
            ("mistral", 8, 32),
            ("qwen2", 32, 32),
            ("qwen3", 32, 128),
            ("gemma2", 4, 256),
        ] {
            assert_eq!(json(model_type, ""), (kv_heads, head_dim), "{model_type}");
            let null = ", \"num_key_value_heads\": null, \"head_dim\": null";
            assert_eq!(json(model_type, null), (64, head_dim), "{model_type}");
            let own = ", \"num_key_value_heads\": 16, \"head_dim\": 48";
            assert_eq!(json(model_type, own), (16, 48), "{model_type}");
        }
    }

    #[test]
    fn another_architecture_is_refused_by_the_fields_that_differ() {
        let errors = |text: &str| read(text).expect_err("it differs");
        let other = errors(&LLAMA.replace("\"llama\"", "\"falcon\""));
        assert!(
            other[0].starts_with("model_type = \"falcon\" is not read; try one of gpt2, llama")
        );
        let neox = errors("model_type = \"gpt_neox\"\nattention_bias = false\n");
        assert!(neox[0].starts_with("attention_bias = false differs from gpt_neox's"), "{neox:?}");
        let biased = errors(&format!("{LLAMA}attention_bias = true\nmlp_bias = true\n"));
        assert_eq!(biased.len(), 2, "{biased:?}");
        assert!(biased[0].starts_with("attention_bias = true differs from llama's"), "{biased:?}");
        let activation = errors(&LLAMA.replace("silu", "relu2"));
        assert_eq!(activation, ["hidden_act = \"relu2\" differs from llama's; try silu"]);
        let missing = errors("model_type = \"mixtral\"\nhidden_size = 0\n");
        assert!(missing.len() >= 7 && missing[0].starts_with("num_hidden_layers is missing"));
        let routed = errors(&format!("{LLAMA}num_local_experts = 8\n"));
        assert!(routed[0].starts_with("num_experts = 8 differs from llama's"), "{routed:?}");
    }
}
