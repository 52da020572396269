#!/usr/bin/env python3
"""Records what PyTorch computes for a small GPT-2 and a small Llama.

    python scripts/golden/make_golden.py            writes crates/harness/golden/*.safetensors
    python scripts/golden/make_golden.py --check    compares with them and writes nothing

Needs torch and numpy (`cargo xtask golden` says how to get them). The models are written out here
in plain torch, with parameter names and layouts as in Hugging Face, so that the recorded numbers
owe nothing to code of ours. Each file holds

    weights.<name>   F32, random but fixed
    grads.<name>     F32, of the mean loss; computed in float64, then rounded once
    inputs, targets  I32 [2, 24]; a target of -1 is ignored
    logits           F32 [2, 24, 256]; computed in float64, then rounded once
    loss             F64 [1], the mean over the targets that are not ignored
    losses           F64 [10], the loss before each of ten AdamW steps on this same batch
    losses_torch_f32 F64 [10], the same losses when torch computes in float32

and, as strings in `__metadata__`, the shape of the model, the optimizer's settings, and how far
torch's own float32 lies from its float64: the measure of what "agrees within rounding" can mean.
"""

import argparse
import json
import os
import pathlib
import struct
import sys

# Ask for arithmetic that does not depend on the instruction set, before torch picks one.
os.environ["ATEN_CPU_CAPABILITY"] = "default"
os.environ["MKL_CBWR"] = "COMPATIBLE"

import numpy as np
import torch
import torch.nn.functional as F

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "crates" / "harness" / "golden"
REGENERATE = "cargo xtask golden --python PATH (scripts/golden/make_golden.py; torch and numpy)"
IGNORE = -1
NUM_SEQUENCES = 2
NUM_STEPS = 10
ADAMW = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
GPT2 = {
    "family": "gpt2", "layers": 2, "width": 32, "heads": 4, "kv_heads": 4, "ffn": 128,
    "vocab": 256, "context": 24, "tied": True, "norm_eps": 1e-5,
}
LLAMA = {
    "family": "llama", "layers": 2, "width": 48, "heads": 6, "kv_heads": 2, "ffn": 88,
    "vocab": 256, "context": 24, "tied": False, "norm_eps": 1e-5, "rope_theta": 10000.0,
}
# A descendant of Llama with all that Llama 3, Qwen2 and Qwen3 add.
QWEN = {
    "family": "llama", "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "head_dim": 12,
    "ffn": 56, "vocab": 256, "context": 24, "tied": True, "norm_eps": 1e-6,
    "rope_theta": 10000.0, "qkv_bias": True, "qk_norm": True, "rope_scaling": "llama3",
    "rope_factor": 8.0, "rope_original_context": 64, "rope_low_freq_factor": 1.0,
    "rope_high_freq_factor": 4.0,
}

# Shape legend: b sequences, t tokens, c width, h heads, d head dim, v vocabulary.


def gpt2_shapes(model):
    """Parameter shapes in order; matrices lie [in, out], as in Hugging Face's Conv1D."""
    width, ffn = model["width"], model["ffn"]
    shapes = {
        "transformer.wte.weight": (model["vocab"], width),
        "transformer.wpe.weight": (model["context"], width),
    }
    for layer in range(model["layers"]):
        at = f"transformer.h.{layer}"
        linears = [("attn.c_attn", width, 3 * width), ("attn.c_proj", width, width)]
        linears += [("mlp.c_fc", width, ffn), ("mlp.c_proj", ffn, width)]
        for norm in ("ln_1", "ln_2"):
            shapes[f"{at}.{norm}.weight"] = shapes[f"{at}.{norm}.bias"] = (width,)
        for name, inputs, outputs in linears:
            shapes[f"{at}.{name}.weight"] = (inputs, outputs)
            shapes[f"{at}.{name}.bias"] = (outputs,)
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (width,)
    return shapes


def llama_shapes(model):
    """Parameter shapes in order; matrices lie [out, in], as in torch's Linear."""
    width, ffn = model["width"], model["ffn"]
    head_dim = model.get("head_dim", width // model["heads"])
    q_width, kv_width = head_dim * model["heads"], head_dim * model["kv_heads"]
    shapes = {"model.embed_tokens.weight": (model["vocab"], width)}
    for layer in range(model["layers"]):
        at = f"model.layers.{layer}"
        shapes[f"{at}.input_layernorm.weight"] = (width,)
        shapes[f"{at}.self_attn.q_proj.weight"] = (q_width, width)
        shapes[f"{at}.self_attn.k_proj.weight"] = (kv_width, width)
        shapes[f"{at}.self_attn.v_proj.weight"] = (kv_width, width)
        if model.get("qkv_bias"):
            shapes[f"{at}.self_attn.q_proj.bias"] = (q_width,)
            shapes[f"{at}.self_attn.k_proj.bias"] = (kv_width,)
            shapes[f"{at}.self_attn.v_proj.bias"] = (kv_width,)
        if model.get("qk_norm"):
            shapes[f"{at}.self_attn.q_norm.weight"] = (head_dim,)
            shapes[f"{at}.self_attn.k_norm.weight"] = (head_dim,)
        shapes[f"{at}.self_attn.o_proj.weight"] = (width, q_width)
        shapes[f"{at}.post_attention_layernorm.weight"] = (width,)
        shapes[f"{at}.mlp.gate_proj.weight"] = (ffn, width)
        shapes[f"{at}.mlp.up_proj.weight"] = (ffn, width)
        shapes[f"{at}.mlp.down_proj.weight"] = (width, ffn)
    shapes["model.norm.weight"] = (width,)
    if not model["tied"]:
        shapes["lm_head.weight"] = (model["vocab"], width)
    return shapes


def make_weights(model, shapes, random):
    """Large enough that no gradient is tiny; norms near one; no bias is zero."""
    weights = {}
    for name, shape in shapes.items():
        noise = random.standard_normal(shape)
        if len(shape) == 1:
            value = 0.1 * noise + (1.0 if name.endswith("weight") else 0.0)
        elif "wte" in name or "wpe" in name or "embed" in name:
            value = 0.2 * noise
        else:
            inputs = shape[0] if model["family"] == "gpt2" else shape[1]
            value = noise / np.sqrt(inputs)
        weights[name] = value.astype(np.float32)
    return weights


def attend(q_bhtd, k_bhtd, v_bhtd):
    """Causal attention with every score written down."""
    num_tokens, head_dim = q_bhtd.shape[-2:]
    scores_bhtt = q_bhtd @ k_bhtd.transpose(-1, -2) / head_dim**0.5
    future_tt = torch.ones(num_tokens, num_tokens, dtype=torch.bool).triu(1)
    return scores_bhtt.masked_fill(future_tt, -torch.inf).softmax(-1) @ v_bhtd


def split_heads(x_btc, num_heads):
    b, t, c = x_btc.shape
    return x_btc.view(b, t, num_heads, c // num_heads).transpose(1, 2)


def merge_heads(x_bhtd):
    b, h, t, d = x_bhtd.shape
    return x_bhtd.transpose(1, 2).reshape(b, t, h * d)


def gpt2_logits(model, p, ids_bt):
    def norm(x, at):
        return F.layer_norm(x, x.shape[-1:], p[f"{at}.weight"], p[f"{at}.bias"], model["norm_eps"])

    def linear(x, at):
        return x @ p[f"{at}.weight"] + p[f"{at}.bias"]

    x_btc = p["transformer.wte.weight"][ids_bt] + p["transformer.wpe.weight"][: ids_bt.shape[1]]
    for layer in range(model["layers"]):
        at = f"transformer.h.{layer}"
        qkv = linear(norm(x_btc, f"{at}.ln_1"), f"{at}.attn.c_attn").split(model["width"], -1)
        q, k, v = (split_heads(part, model["heads"]) for part in qkv)
        x_btc = x_btc + linear(merge_heads(attend(q, k, v)), f"{at}.attn.c_proj")
        hidden = F.gelu(linear(norm(x_btc, f"{at}.ln_2"), f"{at}.mlp.c_fc"), approximate="tanh")
        x_btc = x_btc + linear(hidden, f"{at}.mlp.c_proj")
    return norm(x_btc, "transformer.ln_f") @ p["transformer.wte.weight"].T


def wide(x):
    """Norms, rotations and losses compute in float32 where activations are bfloat16."""
    return x.float() if x.dtype == torch.bfloat16 else x


def scale_frequencies(model, frequencies):
    """Frequencies of Llama 3: slow ones are divided, fast ones kept, others blended."""
    if model.get("rope_scaling") != "llama3":
        return frequencies
    factor, original = model["rope_factor"], model["rope_original_context"]
    low, high = model["rope_low_freq_factor"], model["rope_high_freq_factor"]
    wavelengths = 2 * torch.pi / frequencies
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * frequencies / factor + smooth * frequencies
    scaled = torch.where(wavelengths > original / low, frequencies / factor, blended)
    return torch.where(wavelengths < original / high, frequencies, scaled)


def rotate(narrow_bhtd, model):
    """Rotary positions: element i pairs with element i + d/2."""
    x_bhtd = wide(narrow_bhtd)
    num_tokens, head_dim = x_bhtd.shape[-2:]
    dtype = x_bhtd.dtype
    frequencies = model["rope_theta"] ** -(torch.arange(0, head_dim, 2, dtype=dtype) / head_dim)
    frequencies = scale_frequencies(model, frequencies)
    angles = torch.outer(torch.arange(num_tokens, dtype=dtype), frequencies)
    first, second = x_bhtd.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    rotated = torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    return rotated.to(narrow_bhtd.dtype)


def llama_logits(model, p, ids_bt):
    def norm(x, at):
        rms = (wide(x).square().mean(-1, keepdim=True) + model["norm_eps"]).rsqrt()
        return (wide(x) * rms * wide(p[f"{at}.weight"])).to(x.dtype)

    def linear(x, at):
        y = x @ p[f"{at}.weight"].T
        return y + p[f"{at}.bias"] if f"{at}.bias" in p else y

    def head_norm(x, at):
        return norm(x, at) if model.get("qk_norm") else x

    share = model["heads"] // model["kv_heads"]
    x_btc = p["model.embed_tokens.weight"][ids_bt]
    for layer in range(model["layers"]):
        at = f"model.layers.{layer}"
        z = norm(x_btc, f"{at}.input_layernorm")
        q = split_heads(linear(z, f"{at}.self_attn.q_proj"), model["heads"])
        k = split_heads(linear(z, f"{at}.self_attn.k_proj"), model["kv_heads"])
        v = split_heads(linear(z, f"{at}.self_attn.v_proj"), model["kv_heads"])
        q = rotate(head_norm(q, f"{at}.self_attn.q_norm"), model)
        k = rotate(head_norm(k, f"{at}.self_attn.k_norm"), model)
        # Query heads j*share to (j+1)*share - 1 read key and value head j.
        k, v = k.repeat_interleave(share, 1), v.repeat_interleave(share, 1)
        x_btc = x_btc + linear(merge_heads(attend(q, k, v)), f"{at}.self_attn.o_proj")
        z = norm(x_btc, f"{at}.post_attention_layernorm")
        gate, up = linear(z, f"{at}.mlp.gate_proj"), linear(z, f"{at}.mlp.up_proj")
        x_btc = x_btc + linear(F.silu(gate) * up, f"{at}.mlp.down_proj")
    head = "model.embed_tokens" if model["tied"] else "lm_head"
    return linear(norm(x_btc, "model.norm"), head)


FAMILIES = {"gpt2": (gpt2_shapes, gpt2_logits), "llama": (llama_shapes, llama_logits)}


def train(model, weights, inputs, targets, dtype):
    """Logits, loss and gradients of the first step, and the losses of all steps."""
    logits_of = FAMILIES[model["family"]][1]
    ids_bt = torch.tensor(inputs).long()
    labels = torch.tensor(targets).long().reshape(-1)
    # A copy even where the type is the same: the optimizer writes into its parameters.
    p = {n: torch.tensor(w, dtype=dtype, requires_grad=True) for n, w in weights.items()}
    decayed = [w for w in p.values() if w.dim() == 2]
    plain = [w for w in p.values() if w.dim() != 2]
    groups = [
        {"params": decayed, "weight_decay": ADAMW["weight_decay"]},
        {"params": plain, "weight_decay": 0.0},
    ]
    betas = (ADAMW["beta1"], ADAMW["beta2"])
    optimizer = torch.optim.AdamW(
        groups, lr=ADAMW["lr"], betas=betas, eps=ADAMW["eps"], foreach=False
    )
    first, losses = None, []
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        logits = logits_of(model, p, ids_bt)
        loss = F.cross_entropy(logits.view(-1, model["vocab"]), labels, ignore_index=IGNORE)
        loss.backward()
        if first is None:
            grads = {name: w.grad.double().numpy().copy() for name, w in p.items()}
            first = logits.detach().double().numpy().copy(), grads
        losses.append(loss.item())
        optimizer.step()
    return *first, losses


def relative_error(value, truth):
    """The largest difference, measured by the largest element of the truth."""
    return float(np.abs(value - truth).max() / np.abs(truth).max())


def record(model, seed):
    """Everything one golden file holds: its tensors, and its metadata as strings."""
    random = np.random.Generator(np.random.PCG64(seed))
    weights = make_weights(model, FAMILIES[model["family"]][0](model), random)
    batch = (NUM_SEQUENCES, model["context"])
    inputs = random.integers(0, model["vocab"], batch).astype(np.int32)
    targets = random.integers(0, model["vocab"], batch).astype(np.int32)
    # Ignored targets at an edge, in a run and alone; the two sequences differ.
    last = model["context"] - 1
    for sequence, token in [(0, 0), (0, 9), (0, 10), (0, 11), (1, 5), (1, last)]:
        targets[sequence, token] = IGNORE

    # Read-only, so that what is recorded is what both runs started from.
    for array in (*weights.values(), inputs, targets):
        array.setflags(write=False)
    logits, grads, losses = train(model, weights, inputs, targets, torch.float64)
    logits_f32, grads_f32, losses_f32 = train(model, weights, inputs, targets, torch.float32)
    recorded = {name: torch.tensor(w, dtype=torch.float64) for name, w in weights.items()}
    again = FAMILIES[model["family"]][1](model, recorded, torch.tensor(inputs).long())
    assert np.array_equal(again.numpy(), logits), "the weights are not those of the logits"
    tensors = {"inputs": inputs, "targets": targets, "logits": logits.astype(np.float32)}
    tensors["loss"] = np.array(losses[:1])
    tensors["losses"] = np.array(losses)
    tensors["losses_torch_f32"] = np.array(losses_f32)
    for name in weights:
        tensors[f"weights.{name}"] = weights[name]
        tensors[f"grads.{name}"] = grads[name].astype(np.float32)
    errors = {name: relative_error(grads_f32[name], grads[name]) for name in weights}
    metadata = {
        "made_by": REGENERATE,
        "torch": torch.__version__.split("+")[0],
        "seed": str(seed),
        "model": json.dumps(model),
        "adamw": json.dumps(ADAMW | {"decays": "parameters of two dimensions"}),
        "losses": json.dumps(losses),
        "losses_torch_f32": json.dumps(losses_f32),
        "error_is": "max |f32 - f64| / max |f64| over the tensor, torch float32 against float64",
        "logits_error_torch_f32": repr(relative_error(logits_f32, logits)),
        "grads_error_torch_f32": json.dumps({n: float(f"{e:.3e}") for n, e in errors.items()}),
    }
    return tensors, metadata


DTYPES = {"float64": "F64", "float32": "F32", "int32": "I32"}


def to_safetensors(tensors, metadata):
    """The safetensors format: header length, JSON header, then the data without gaps."""
    # Wide elements first keeps every tensor aligned to its own element.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    header, data = {"__metadata__": metadata}, bytearray()
    for name in order:
        tensor = np.ascontiguousarray(tensors[name])
        start = len(data)
        data += tensor.astype(tensor.dtype.newbyteorder("<")).tobytes()
        header[name] = {
            "dtype": DTYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [start, len(data)],
        }
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False
    stale = []
    for name, model, seed in [("gpt2", GPT2, 20250), ("llama", LLAMA, 20251),
                              ("qwen", QWEN, 20252)]:
        tensors, metadata = record(model, seed)
        content = to_safetensors(tensors, metadata)
        path = FOLDER / f"{name}.safetensors"
        losses = json.loads(metadata["losses"])
        print(f"{path.name}: {len(content)} bytes, loss {losses[0]:.9f} to {losses[-1]:.9f}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif not path.exists() or path.read_bytes() != content:
            stale.append(path.name)
    if stale:
        sys.exit(f"not what this machine computes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
