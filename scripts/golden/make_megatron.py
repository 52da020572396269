#!/usr/bin/env python3
"""Writes a checkpoint of Megatron-Core, and the model in it as a folder of Hugging Face.

    python scripts/golden/make_megatron.py        writes crates/harness/golden/megatron

Needs torch, numpy, safetensors and megatron-core. A small `GPTModel` (grouped queries, SwiGLU, RMSNorm,
biases of q, k and v, a padded vocabulary) is saved by `megatron.core.dist_checkpointing` in the
format `torch_dist`: `stacked` with layers as one tensor, `by-layer` with a tensor for each. `hf` has
the weights under the names of `transformers`, and `logits.json` what Megatron's own forward pass
computes for a few tokens.
"""

import contextlib
import json
import os
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0", "WORLD_SIZE": "1",
               "LOCAL_RANK": "0"}
FOLDER = pathlib.Path(__file__).resolve().parents[2] / "crates" / "harness" / "golden" / "megatron"
LAYERS, WIDTH, HEADS, GROUPS, FFN, VOCAB, PADDED, CONTEXT = 2, 16, 4, 2, 24, 260, 272, 16
HEAD_DIM = WIDTH // HEADS
IDS = [7, 0, 259, 3, 41]
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": WIDTH,
    "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "torch_dtype": "float32", "use_sliding_window": False,
}


def build():
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(
        num_layers=LAYERS, hidden_size=WIDTH, num_attention_heads=HEADS, num_query_groups=GROUPS,
        ffn_hidden_size=FFN, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
        add_bias_linear=False, add_qkv_bias=True, normalization="RMSNorm", layernorm_epsilon=1e-5,
        use_cpu_initialization=True, attention_dropout=0.0, hidden_dropout=0.0,
        bias_activation_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False,
        gradient_accumulation_fusion=False, persist_layer_norm=False, bias_dropout_fusion=False,
    )
    model = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm"),
        vocab_size=PADDED, max_sequence_length=CONTEXT, position_embedding_type="rope",
        rotary_base=10000, share_embeddings_and_output_weights=False,
    )
    generator = torch.Generator().manual_seed(30)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            is_norm = "norm" in name
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator) + float(is_norm))
    return model.eval()


def logits_of(model):
    ids = torch.tensor([IDS])
    positions = torch.arange(len(IDS))[None]
    future = torch.ones(len(IDS), len(IDS), dtype=torch.bool).triu(1)[None, None]
    with torch.no_grad():
        return model(ids, positions, future)[0, :, :VOCAB]


def split_qkv(rows):
    """Rows of queries, keys and values: a group of heads has its queries, its key and its value."""
    per_group = HEADS // GROUPS
    groups = rows.view(GROUPS, per_group + 2, HEAD_DIM, *rows.shape[1:])
    parts = groups[:, :per_group], groups[:, per_group], groups[:, per_group + 1]
    return [part.reshape(-1, *rows.shape[1:]).clone() for part in parts]


def hugging_face(state):
    weights = {
        "model.embed_tokens.weight": state["embedding.word_embeddings.weight"][:VOCAB].clone(),
        "lm_head.weight": state["output_layer.weight"][:VOCAB].clone(),
        "model.norm.weight": state["decoder.final_layernorm.weight"],
    }
    for layer in range(LAYERS):
        theirs, ours = f"decoder.layers.{layer}", f"model.layers.{layer}"
        attention, mlp = f"{ours}.self_attn", f"{ours}.mlp"
        weights[f"{ours}.input_layernorm.weight"] = state[f"{theirs}.input_layernorm.weight"]
        weights[f"{ours}.post_attention_layernorm.weight"] = state[f"{theirs}.pre_mlp_layernorm.weight"]
        for kind in ("weight", "bias"):
            parts = split_qkv(state[f"{theirs}.self_attention.linear_qkv.{kind}"])
            for name, part in zip("qkv", parts):
                weights[f"{attention}.{name}_proj.{kind}"] = part
        weights[f"{attention}.o_proj.weight"] = state[f"{theirs}.self_attention.linear_proj.weight"]
        gate, up = state[f"{theirs}.mlp.linear_fc1.weight"].chunk(2)
        weights[f"{mlp}.gate_proj.weight"], weights[f"{mlp}.up_proj.weight"] = gate.clone(), up.clone()
        weights[f"{mlp}.down_proj.weight"] = state[f"{theirs}.mlp.linear_fc2.weight"]
    return weights


def main():
    from megatron.core import dist_checkpointing
    from megatron.core.tensor_parallel import random as rng

    torch.set_num_threads(1)
    # Megatron puts angles on a GPU, and saving waits for it.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"
    # Dropout, of which there is none, would have its own random numbers there.
    rng.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    model = build()
    logits = logits_of(model).tolist()
    shutil.rmtree(FOLDER, ignore_errors=True)
    config = json.dumps(CONFIG, indent=1) + "\n"
    for name, metadata in (("stacked", {}), ("by-layer", {"singleton_local_shards": True})):
        # As Megatron-LM lays out a run: the newest iteration is in a file beside the folders.
        root = FOLDER / name
        folder = root / "iter_0000010"
        folder.mkdir(parents=True)
        state = model.sharded_state_dict(metadata=metadata)
        state |= {"iteration": 10, "checkpoint_version": 3.0}
        dist_checkpointing.save(state, str(folder), ("torch_dist", 1))
        (root / "latest_checkpointed_iteration.txt").write_text("10")
        (root / "config.json").write_text(config)
    state = {name: value.detach() for name, value in model.state_dict().items() if value is not None}
    hf = FOLDER / "hf"
    hf.mkdir()
    (hf / "config.json").write_text(config)
    save_file(hugging_face(state), hf / "model.safetensors", metadata={"format": "pt"})
    (FOLDER / "logits.json").write_text(
        json.dumps({"ids": IDS, "logits": logits}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
