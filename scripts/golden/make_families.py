#!/usr/bin/env python3
"""Records what PyTorch computes for small models of `transformers`: OLMo 2, Phi-3, Gemma 2, GPT-NeoX,
BLOOM.

    python scripts/golden/make_families.py            writes crates/harness/golden/*.safetensors
    python scripts/golden/make_families.py --check    compares with them and writes nothing

Needs torch, numpy and transformers. The files are those of make_golden.py, which describes them;
later families have twenty steps.
Norms and angles of these models compute in float32 whatever the type of the weights, so that here
the float64 results carry the rounding of those parts.
"""

import argparse
import json
import sys

import numpy as np
import torch
import transformers

import make_golden

SIZES = {"vocab": 256, "context": 12, "layers": 2, "width": 16, "heads": 2, "kv_heads": 1,
         "ffn": 24, "norm_eps": 1e-5, "rope_theta": 10000.0}
NEOX = {key: SIZES[key] for key in ("vocab", "context", "layers", "width", "norm_eps", "rope_theta")}
NEOX |= {"family": "gpt_neox", "heads": 2, "ffn": 24, "tied": False, "rotary_pct": 0.25,
         "parallel_residual": True, "gelu_approximate": "none"}
BLOOM = {key: SIZES[key] for key in ("vocab", "context", "layers", "norm_eps")}
BLOOM |= {"family": "bloom", "width": 18, "heads": 3, "tied": True}
# Each with what its recipe says, and what its class in transformers has besides.
CASES = {
    "olmo2": (SIZES | {"model_type": "olmo2", "tied": False}, "Olmo2", {}),
    "phi3": (SIZES | {"model_type": "phi3", "tied": True, "sliding_window": 5}, "Phi3", {}),
    "gemma2": (
        SIZES | {"model_type": "gemma2", "tied": True, "sliding_window": 5, "head_dim": 6,
                 "query_scalar": 5, "attention_soft_cap": 1.5, "final_soft_cap": 2.0},
        "Gemma2",
        {"query_pre_attn_scalar": 5, "attn_logit_softcapping": 1.5,
         "final_logit_softcapping": 2.0},
    ),
    "gpt_neox": (NEOX, "GPTNeoX", {}),
    "bloom": (BLOOM, "Bloom", {}),
}
# Steps of AdamW, where they are not those of make_golden.py.
NUM_STEPS = {"gpt_neox": 20, "bloom": 20}
# Parameters that `transformers` has under another name than its files.
STORED_NAMES = {"gpt_neox": {"lm_head.weight": "embed_out.weight"}}


def neox_options(model):
    """Options of GPT-NeoX that are not those of Llama's descendants."""
    act = {"none": "gelu", "tanh": "gelu_new"}[model["gelu_approximate"]]
    return {"layer_norm_eps": model["norm_eps"], "hidden_act": act,
            "rotary_emb_base": model["rope_theta"], "rotary_pct": model["rotary_pct"],
            "use_parallel_residual": model["parallel_residual"]}


def build(model, name, own):
    """The model of `transformers` with these sizes."""
    if name == "Bloom":
        config = transformers.BloomConfig(
            vocab_size=model["vocab"], hidden_size=model["width"], n_layer=model["layers"],
            n_head=model["heads"], layer_norm_epsilon=model["norm_eps"], pad_token_id=None,
            tie_word_embeddings=model["tied"], attn_implementation="eager")
        return transformers.BloomForCausalLM(config).eval()
    options = {
        "vocab_size": model["vocab"], "max_position_embeddings": model["context"],
        "num_hidden_layers": model["layers"], "hidden_size": model["width"],
        "num_attention_heads": model["heads"], "intermediate_size": model["ffn"],
        "tie_word_embeddings": model["tied"], "pad_token_id": None,
        "eos_token_id": None, **own,
    }
    if name == "GPTNeoX":
        options |= neox_options(model)
    else:
        options |= {"num_key_value_heads": model["kv_heads"], "rms_norm_eps": model["norm_eps"]}
    options |= {key: model[key] for key in ("sliding_window", "head_dim") if key in model}
    config = getattr(transformers, f"{name}Config")(**options, attn_implementation="eager")
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def record(model, name, own, seed):
    types = (torch.float64, torch.float32)
    reference = {dtype: build(model, name, own).to(dtype) for dtype in types}

    stored = STORED_NAMES.get(model.get("family"), {})
    own_names = {theirs: ours for ours, theirs in stored.items()}

    def logits_of(_, p, ids_bt):
        dtype = next(iter(p.values())).dtype
        own_p = {own_names.get(n, n): w for n, w in p.items()}
        return torch.func.functional_call(reference[dtype], own_p, ids_bt).logits

    def shapes_of(_):
        parameters = reference[torch.float64].named_parameters()
        return {stored.get(n, n): tuple(p.shape) for n, p in parameters}

    # Rows of weights are outputs, as in Llama.
    model = {"family": "llama"} | model
    make_golden.FAMILIES[model["family"]] = (shapes_of, logits_of)
    make_golden.NUM_STEPS = NUM_STEPS.get(model["family"], 10)
    return make_golden.record(model, seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    parser.add_argument("--only", choices=CASES, action="append", help="a file; all by default")
    arguments = parser.parse_args()
    check = arguments.check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False
    stale = []
    for index, (case, (model, name, own)) in enumerate(CASES.items()):
        if arguments.only and case not in arguments.only:
            continue
        tensors, metadata = record(model, name, own, 20260 + index)
        metadata["made_by"] = "scripts/golden/make_families.py; torch, numpy and transformers"
        metadata["transformers"] = transformers.__version__
        content = make_golden.to_safetensors(tensors, metadata)
        path = make_golden.FOLDER / f"{case}.safetensors"
        losses = json.loads(metadata["losses"])
        print(f"{path.name}: {len(content)} bytes, loss {losses[0]:.9f} to {losses[-1]:.9f}")
        if not check:
            path.write_bytes(content)
        elif not path.exists() or path.read_bytes() != content:
            stale.append(path.name)
    if stale:
        sys.exit(f"not what this machine computes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
