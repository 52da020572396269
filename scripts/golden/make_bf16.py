#!/usr/bin/env python3
"""Records how far PyTorch's bf16 gradients lie from float64, for the models of make_golden.py.

    python scripts/golden/make_bf16.py            writes crates/harness/golden/bf16.txt
    python scripts/golden/make_bf16.py --check    compares with it and writes nothing

PyTorch computes in the two ways people train with: float32 parameters under `torch.autocast` in
bfloat16, whose residual stream is float32, and the whole model in bfloat16 beside float32 master
weights, whose residual stream is bfloat16 too (FSDP with `param_dtype`, Megatron-LM with `--bf16`).
There norms and rotations compute in float32 inside and attention is PyTorch's fused one, as in the
models people use. The batch, the weights and the gradients in float64 are those of the golden files.
A line has the family, the parameter, and for each way |bf16 - f64| / |f64|, Euclidean norms over the
whole tensor.
"""

import argparse
import sys

import make_golden as golden
import numpy as np
import torch
import torch.nn.functional as F


def gradients(model, tensors, dtype, autocast=False):
    """The gradients of the mean loss of the recorded batch."""
    logits_of = golden.FAMILIES[model["family"]][1]
    names = [name.removeprefix("weights.") for name in tensors if name.startswith("weights.")]
    p = {n: torch.tensor(tensors[f"weights.{n}"], dtype=dtype, requires_grad=True) for n in names}
    ids_bt = torch.tensor(tensors["inputs"]).long()
    labels = torch.tensor(tensors["targets"]).long().reshape(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits = golden.wide(logits_of(model, p, ids_bt).view(-1, model["vocab"]))
        loss = F.cross_entropy(logits, labels, ignore_index=-1)
    loss.backward()
    return {name: w.grad.double().numpy() for name, w in p.items()}


def fused_attention(q_bhtd, k_bhtd, v_bhtd):
    return F.scaled_dot_product_attention(q_bhtd, k_bhtd, v_bhtd, is_causal=True)


def lines():
    yield f"# torch {torch.__version__.split('+')[0]} against float64: autocast bfloat16, all bfloat16;"
    yield "# made by scripts/golden/make_bf16.py"
    written_out = golden.attend
    for model, seed in [(golden.GPT2, 20250), (golden.LLAMA, 20251)]:
        tensors, _ = golden.record(model, seed)
        truth = gradients(model, tensors, torch.float64)
        autocast = gradients(model, tensors, torch.float32, autocast=True)
        golden.attend = fused_attention
        narrow = gradients(model, tensors, torch.bfloat16)
        golden.attend = written_out
        for name, exact in truth.items():
            norms = [np.linalg.norm(found[name] - exact) for found in (autocast, narrow)]
            errors = " ".join(f"{norm / np.linalg.norm(exact):.4e}" for norm in norms)
            yield f"{model['family']} {name} {errors}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    # Its own kernels add in an order that does not depend on the CPU; those of oneDNN do.
    torch.backends.mkldnn.set_flags(False)
    text = "\n".join(lines()) + "\n"
    path = golden.FOLDER / "bf16.txt"
    print(text, end="")
    if not check:
        path.write_text(text)
    elif path.read_text() != text:
        sys.exit("not what this machine computes: bf16.txt")


if __name__ == "__main__":
    main()
