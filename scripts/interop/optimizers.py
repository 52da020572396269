#!/usr/bin/env python3
"""Holds the recorded steps of Muon and schedule-free AdamW against their authors' and PyTorch's code.

    python scripts/interop/optimizers.py

crates/harness/golden/optimizers.safetensors has ten steps of these rules as
scripts/golden/make_optimizers.py writes them out from their papers; the tests hold lockstep to it.
Here `torch.optim.Muon` and the package `schedulefree` take the ten steps, in float64, and must end at
the recorded numbers, which are rounded to float32 once. PyTorch's Muon orthogonalises in bfloat16; here
it is made to compute in float64, so that a difference of the rules is no matter of rounding.

Needs Python 3.10. The packages are taken from --python PATH or LOCKSTEP_INTEROP_PYTHON, or installed
by pip into target/interop; a package that is missing there is left out.
"""

import argparse
import json
import pathlib

import interpreter

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "crates" / "harness" / "golden" / "optimizers.safetensors"
NUM_STEPS = 10
# Half the distance from 1 to the next float32, as a share of a tensor's largest element.
LIMIT = 2.0**-24


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lockstep", help="unused: the tests hold the program to the golden file")
    parser.add_argument("--python", help="an interpreter that has torch and schedulefree")
    interpreter.use(parser.parse_args().python)
    from safetensors import safe_open
    with safe_open(GOLDEN, "pt") as file:
        settings, rates = (json.loads(file.metadata()[key]) for key in ("settings", "rates"))
        tensors = {name: file.get_tensor(name).double() for name in file.keys()}
    names = [name.removeprefix("start.") for name in tensors if name.startswith("start.")]
    for rule, make, has in (("muon", muon, lambda name: name.endswith("weight")),
                            ("schedule-free-adamw", schedule_free, lambda name: True)):
        try:
            worst = compare(rule, make, settings, rates[rule], tensors, filter(has, names))
        except ImportError as missing:
            print(f"{rule}: left out, {missing}")
            continue
        assert worst <= LIMIT, f"{rule}: {worst} from the recorded steps"
        print(f"{rule:<20} {NUM_STEPS} steps within {worst:.1e} of the recorded ones")


def compare(rule, make, settings, rate, tensors, names):
    """The largest difference from the recorded results, as a share of the largest element."""
    import torch
    worst, num = 0.0, 0
    for name in names:
        start, slope, goal = (tensors[f"{kind}.{name}"] for kind in ("start", "slope", "goal"))
        param = torch.nn.Parameter(start.clone())
        decay = settings["weight_decay"] if name.endswith("weight") else 0.0
        optimizer = make(param, settings, decay)
        for step in range(NUM_STEPS):
            optimizer.param_groups[0]["lr"] = rate / (1 + step / 5)
            optimizer.zero_grad()
            (slope / 2 * (param - goal) ** 2).sum().backward()
            optimizer.step()
        if hasattr(optimizer, "eval"):
            optimizer.eval()
        expected = tensors[f"{rule}.{name}"]
        off = (param.detach() - expected).abs().max() / expected.abs().max()
        worst, num = max(worst, off.item()), num + 1
    assert num > 1, f"{rule}: no tensor"
    return worst


def muon(param, settings, decay):
    import torch
    if not hasattr(torch.optim, "Muon"):
        raise ImportError("this PyTorch has no Muon")
    # Its code names the type in the one way or the other.
    torch.bfloat16, torch.Tensor.bfloat16 = torch.float64, torch.Tensor.double
    return torch.optim.Muon([param], lr=1.0, weight_decay=decay, momentum=settings["momentum"],
                            nesterov=True, adjust_lr_fn="match_rms_adamw")


def schedule_free(param, settings, decay):
    import schedulefree
    # Equal weights of all steps, as in the paper's algorithm.
    optimizer = schedulefree.AdamWScheduleFree(
        [param], lr=1.0, betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"],
        weight_decay=decay, weight_lr_power=0.0, foreach=False)
    optimizer.train()
    return optimizer


if __name__ == "__main__":
    main()
