"""Small models, written by `transformers` itself: every kind of folder that lockstep reads.

Weights are random but fixed by the seed, and large enough that attention, positions and
activations all matter: with the usual tiny initial weights a model that mixed up two heads would
still come within 1e-4.
"""

import dataclasses
import json

import torch
import transformers

SEED = 20261115
VOCAB = 260
# Every token of a longer text depends on all before it.
TOKENS = [7, 0, 259, 101, 32, 116, 104, 101, 10, 200, 3, 7]


@dataclasses.dataclass
class Case:
    """One folder: a model, how it is stored, and whether it is kept in the repository."""

    name: str
    model: str  # class in transformers
    options: dict
    dtype: str = "float32"
    shard: str = "5GB"
    golden: bool = False


GPT2 = dict(vocab_size=VOCAB, n_positions=16, n_embd=16, n_layer=2, n_head=4,
            bos_token_id=0, eos_token_id=0)
LLAMA = dict(vocab_size=VOCAB, max_position_embeddings=16, hidden_size=16, intermediate_size=24,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             bos_token_id=1, eos_token_id=2)

# Angles of which some are divided, some kept and some blended over the positions of a test.
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=32)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
            original_max_position_embeddings=16)
LONGER = LLAMA | dict(max_position_embeddings=64)
# Caps that scores and logits come near, and a window shorter than the tokens of a test.
GEMMA2 = LLAMA | dict(head_dim=4, sliding_window=5, query_pre_attn_scalar=6,
                      attn_logit_softcapping=2.0, final_logit_softcapping=3.0)

# Four of the eight elements of a head are turned.
NEOX = dict(vocab_size=VOCAB, max_position_embeddings=16, hidden_size=32, intermediate_size=24,
            num_hidden_layers=2, num_attention_heads=4, rotary_pct=0.5, bos_token_id=0,
            eos_token_id=0)

# Heads that are no power of two: their slopes are of two sequences.
BLOOM = dict(vocab_size=VOCAB, hidden_size=24, n_layer=2, n_head=6, seq_length=16, bos_token_id=1,
             eos_token_id=2)

CASES = [
    Case("gpt2", "GPT2LMHeadModel", GPT2, golden=True),
    Case("gpt2-untied", "GPT2LMHeadModel", GPT2 | dict(tie_word_embeddings=False, n_inner=40)),
    Case("gpt2-bare", "GPT2Model", GPT2, shard="8KB"),
    Case("gpt2-f16", "GPT2LMHeadModel", GPT2, dtype="float16"),
    Case("llama-sharded", "LlamaForCausalLM", LLAMA, shard="12KB", golden=True),
    Case("llama-tied-bf16", "LlamaForCausalLM", LLAMA | dict(tie_word_embeddings=True),
         dtype="bfloat16", golden=True),
    Case("llama-theta", "LlamaForCausalLM",
         LLAMA | dict(rope_theta=500000.0, rms_norm_eps=1e-5, num_key_value_heads=1)),
    Case("llama-bare-tied", "LlamaModel",
         LLAMA | dict(tie_word_embeddings=True, num_key_value_heads=4)),
    Case("llama3", "LlamaForCausalLM",
         LONGER | dict(tie_word_embeddings=True, head_dim=8, rope_parameters=LLAMA3),
         golden=True),
    Case("llama-linear", "LlamaForCausalLM",
         LLAMA | dict(rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=3.0))),
    Case("llama-dynamic", "LlamaForCausalLM",
         LLAMA | dict(rope_parameters=dict(rope_type="dynamic", rope_theta=1e4, factor=2.0))),
    Case("llama-yarn", "LlamaForCausalLM",
         LONGER | dict(rope_parameters=YARN, head_dim=12)),
    Case("llama-yarn-own", "LlamaForCausalLM",
         LONGER | dict(rope_parameters=YARN | dict(attention_factor=0.8, beta_fast=4.0,
                                                   beta_slow=0.5, truncate=False))),
    Case("llama-yarn-mscale", "LlamaForCausalLM",
         LONGER | dict(rope_parameters=YARN | dict(mscale=0.7, mscale_all_dim=1.3))),
    Case("qwen2", "Qwen2ForCausalLM", LONGER | dict(rope_parameters=YARN), golden=True),
    Case("qwen2-tied-bf16", "Qwen2ForCausalLM", LLAMA | dict(tie_word_embeddings=True),
         dtype="bfloat16", shard="8KB"),
    Case("qwen3", "Qwen3ForCausalLM", LLAMA | dict(head_dim=10, tie_word_embeddings=True),
         golden=True),
    Case("qwen3-bare", "Qwen3Model", LLAMA | dict(head_dim=4, tie_word_embeddings=True)),
    Case("mistral", "MistralForCausalLM", LLAMA | dict(sliding_window=5), golden=True),
    Case("mistral-v3", "MistralForCausalLM",
         LLAMA | dict(sliding_window=None, head_dim=6, rope_theta=1e6)),
    Case("olmo2", "Olmo2ForCausalLM", LLAMA | dict(pad_token_id=None), golden=True),
    Case("olmo2-bare", "Olmo2Model",
         LLAMA | dict(pad_token_id=None, num_key_value_heads=4, tie_word_embeddings=True)),
    Case("phi3", "Phi3ForCausalLM", LLAMA | dict(pad_token_id=None, sliding_window=5),
         golden=True),
    Case("phi3-bf16", "Phi3ForCausalLM",
         LLAMA | dict(pad_token_id=None, num_key_value_heads=4, tie_word_embeddings=True),
         dtype="bfloat16", shard="8KB"),
    Case("gemma2", "Gemma2ForCausalLM", GEMMA2, golden=True),
    Case("gpt-neox", "GPTNeoXForCausalLM", NEOX, golden=True),
    Case("gpt-neox-sequential", "GPTNeoXForCausalLM",
         NEOX | dict(use_parallel_residual=False, hidden_act="gelu_new", tie_word_embeddings=True,
                     rope_parameters=dict(rope_type="default", rope_theta=500.0,
                                          partial_rotary_factor=1.0))),
    Case("gpt-neox-bare-bf16", "GPTNeoXModel",
         NEOX | dict(tie_word_embeddings=True, rope_parameters=dict(
             rope_type="linear", rope_theta=1e4, factor=3.0, partial_rotary_factor=0.3)),
         dtype="bfloat16", shard="8KB"),
    Case("bloom", "BloomForCausalLM", BLOOM, golden=True),
    Case("bloom-untied-f16", "BloomForCausalLM",
         BLOOM | dict(n_head=4, tie_word_embeddings=False, layer_norm_epsilon=1e-3),
         dtype="float16", shard="8KB"),
    Case("bloom-bare", "BloomModel", BLOOM | dict(n_head=3)),
    Case("gemma2-uncapped", "Gemma2ForCausalLM",
         GEMMA2 | dict(attn_logit_softcapping=None, final_logit_softcapping=None, head_dim=6,
                       sliding_window=64, tie_word_embeddings=False)),
]


def write(case, folder):
    """Makes the model of a case and saves it as its users would."""
    torch.manual_seed(SEED)
    model_class = getattr(transformers, case.model)
    model = model_class(model_class.config_class(**case.options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            around = 1.0 if "norm" in name or ".ln_" in name else 0.0
            if name.endswith("bias") or case.model.startswith("Gemma"):
                around = 0.0
            parameter.copy_(around + 0.3 * torch.randn(parameter.shape))
    model.to(getattr(torch, case.dtype))
    model.save_pretrained(folder, max_shard_size=case.shard)


def load(folder):
    """The language model in a folder, computing in float32, and what was wrong with loading it."""
    config = json.loads((folder / "config.json").read_text())
    names = {"gpt2": "GPT2LMHeadModel", "llama": "LlamaForCausalLM",
             "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
             "qwen3": "Qwen3ForCausalLM", "olmo2": "Olmo2ForCausalLM",
             "phi3": "Phi3ForCausalLM", "gemma2": "Gemma2ForCausalLM",
             "gpt_neox": "GPTNeoXForCausalLM", "bloom": "BloomForCausalLM"}
    model_class = getattr(transformers, names[config["model_type"]])
    model, info = model_class.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager")
    return model.eval(), info


def logits(model, tokens=TOKENS):
    """A row for each token."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0]
