#!/usr/bin/env python3
"""Records how far PyTorch's bf16 gradients lie from float64, for the models of make_golden.py.

    python scripts/golden/make_bf16.py            writes crates/harness/golden/bf16.txt
    python scripts/golden/make_bf16.py --check    compares with it and writes nothing

PyTorch computes as people train with it: float32 parameters under `torch.autocast` in bfloat16.
The batch, the weights and the gradients in float64 are those of the golden files. A line has the
family, the parameter, and |bf16 - f64| / |f64|, Euclidean norms over the whole tensor.
"""

import argparse
import sys

import make_golden as golden
import numpy as np
import torch
import torch.nn.functional as F


def gradients(model, tensors, dtype, autocast):
    """The gradients of the mean loss of the recorded batch."""
    logits_of = golden.FAMILIES[model["family"]][1]
    names = [name.removeprefix("weights.") for name in tensors if name.startswith("weights.")]
    p = {n: torch.tensor(tensors[f"weights.{n}"], dtype=dtype, requires_grad=True) for n in names}
    ids_bt = torch.tensor(tensors["inputs"]).long()
    labels = torch.tensor(tensors["targets"]).long().reshape(-1)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        logits = logits_of(model, p, ids_bt).view(-1, model["vocab"])
        loss = F.cross_entropy(logits.float() if autocast else logits, labels, ignore_index=-1)
    loss.backward()
    return {name: w.grad.double().numpy() for name, w in p.items()}


def lines():
    yield f"# torch {torch.__version__.split('+')[0]}, autocast bfloat16 against float64;"
    yield "# made by scripts/golden/make_bf16.py"
    for model, seed in [(golden.GPT2, 20250), (golden.LLAMA, 20251)]:
        tensors, _ = golden.record(model, seed)
        truth = gradients(model, tensors, torch.float64, False)
        found = gradients(model, tensors, torch.float32, True)
        for name, value in found.items():
            error = np.linalg.norm(value - truth[name]) / np.linalg.norm(truth[name])
            yield f"{model['family']} {name} {error:.4e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    text = "\n".join(lines()) + "\n"
    path = golden.FOLDER / "bf16.txt"
    print(text, end="")
    if not check:
        path.write_text(text)
    elif path.read_text() != text:
        sys.exit("not what this machine computes: bf16.txt")


if __name__ == "__main__":
    main()
