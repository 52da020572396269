#!/usr/bin/env python3
"""Records ten steps of each optimizer on a small problem of three tensors.

    python scripts/golden/make_optimizers.py            writes golden/optimizers.safetensors
    python scripts/golden/make_optimizers.py --check    compares with it and writes nothing

The problem is f(p) = sum of s / 2 * (p - t)^2 over all elements, with a matrix of more than one
chunk of the norm, a small matrix, and a vector, which has no weight decay. SGD, momentum, Nesterov,
Adam, AdamW and Adafactor are PyTorch's; the others are written out from their papers:

    LARS  You, Gitman, Ginsburg 2017, algorithm 1: the learning rate is inside the velocity
    LAMB  You et al. 2019, algorithm 2, with bias correction and phi(z) = z
    Lion  Chen et al. 2023, algorithm 2
    Muon  Jordan et al. 2024, of every matrix, scaled as by Liu et al. 2025; AdamW of the vector
    schedule-free AdamW  Defazio et al. 2024, algorithm 1, with the bias correction in the
        denominator and equal weights of all steps; the result is the average x

PyTorch's Adafactor multiplies the rate by max(eps2, RMS(p)): a large eps2 and a rate over it make an
absolute rate.

LARS and LAMB leave vectors alone (their ratio is one), as the authors' code does. Everything is
computed in float64 and rounded once. The file holds `start.<tensor>`, `slope.<tensor>`,
`goal.<tensor>` and, for each rule, `<rule>.<tensor>` after ten steps, all F32; the settings are in
`__metadata__`.
"""

import argparse
import json
import sys

import numpy as np
import torch

from make_golden import FOLDER, to_safetensors

NUM_STEPS = 10
SHAPES = {"a.weight": (130, 40), "b.bias": (40,), "c.weight": (5, 7)}
SETTINGS = {
    "weight_decay": 0.1, "momentum": 0.9, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "trust": 0.02,
}
RATES = {
    "sgd": 0.1, "momentum": 0.05, "nesterov": 0.05, "adam": 0.02, "adamw": 0.02, "lars": 1.0,
    "lamb": 0.05, "lion": 0.02, "muon": 0.02, "schedule-free-adamw": 0.1, "adafactor": 0.05,
}
BY_TORCH = ("sgd", "momentum", "nesterov", "adam", "adamw", "adafactor")
# Above the RMS of any tensor.
ADAFACTOR_EPS2 = 1000.0


def rate(rule, step):
    """The learning rate falls, so that it matters where a rule applies it."""
    return RATES[rule] / (1 + step / 5)


def decay_of(name):
    return SETTINGS["weight_decay"] if name.endswith("weight") else 0.0


def by_torch(rule, problem):
    """Ten steps of a rule that PyTorch has."""
    s = SETTINGS
    params = {n: torch.nn.Parameter(torch.from_numpy(p[0])) for n, p in problem.items()}
    groups = [
        {"params": [p], "weight_decay": decay_of(n), "decay": decay_of(n)}
        for n, p in params.items()
    ]
    betas = (s["beta1"], s["beta2"])
    optimizer = {
        "sgd": lambda: torch.optim.SGD(groups, lr=1.0),
        "momentum": lambda: torch.optim.SGD(groups, lr=1.0, momentum=s["momentum"]),
        "nesterov": lambda: torch.optim.SGD(groups, lr=1.0, momentum=s["momentum"], nesterov=True),
        "adam": lambda: torch.optim.Adam(groups, lr=1.0, betas=betas, eps=s["eps"]),
        "adamw": lambda: torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=s["eps"]),
        "adafactor": lambda: torch.optim.Adafactor(groups, eps=(1e-30, ADAFACTOR_EPS2)),
    }[rule]()
    for step in range(NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = rate(rule, step)
            if rule == "adafactor":
                group["lr"] /= ADAFACTOR_EPS2
                group["weight_decay"] = ADAFACTOR_EPS2 * group["decay"]
        optimizer.zero_grad()
        loss = 0.0
        for name, (_, slope, goal) in problem.items():
            slope, goal = torch.from_numpy(slope), torch.from_numpy(goal)
            loss = loss + (slope / 2 * (params[name] - goal) ** 2).sum()
        loss.backward()
        optimizer.step()
    return {name: p.detach().numpy() for name, p in params.items()}


def norm(x):
    return float(np.sqrt((x * x).sum()))


def orthogonalized(x):
    """Five Newton-Schulz steps."""
    if x.shape[0] > x.shape[1]:
        return orthogonalized(x.T).T
    x = x / norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def by_paper(rule, problem):
    """Ten steps of a rule that PyTorch lacks, one tensor (the papers' layer) after the other."""
    s = SETTINGS
    ends = {}
    for name, (start, slope, goal) in problem.items():
        w = start.copy()
        is_layer = name.endswith("weight")
        decay = decay_of(name)
        m, v = np.zeros_like(w), np.zeros_like(w)
        for step in range(NUM_STEPS):
            lr, g = rate(rule, step), slope * (w - goal)
            if rule == "lars":
                local = s["trust"] * norm(w) / (norm(g) + decay * norm(w)) if is_layer else 1.0
                v = s["momentum"] * v + lr * local * (g + decay * w)
                w = w - v
            elif rule == "muon" and is_layer:
                m = s["momentum"] * m + (1 - s["momentum"]) * g
                direction = (1 - s["momentum"]) * g + s["momentum"] * m
                size = 0.2 * np.sqrt(max(w.shape))
                w = w * (1 - lr * decay) - lr * size * orthogonalized(direction)
            elif rule == "schedule-free-adamw":
                if step == 0:
                    x, z = w, w
                v = s["beta2"] * v + (1 - s["beta2"]) * g * g
                v_hat = v / (1 - s["beta2"] ** (step + 1))
                z = z - lr * (g / (np.sqrt(v_hat) + s["eps"]) + decay * w)
                x = x + (z - x) / (step + 1)
                w = (1 - s["beta1"]) * z + s["beta1"] * x
            elif rule == "lion":
                direction = s["beta1"] * m + (1 - s["beta1"]) * g
                w = w - lr * (np.sign(direction) + decay * w)
                m = s["beta2"] * m + (1 - s["beta2"]) * g
            else:
                m = s["beta1"] * m + (1 - s["beta1"]) * g
                v = s["beta2"] * v + (1 - s["beta2"]) * g * g
                m_hat = m / (1 - s["beta1"] ** (step + 1))
                v_hat = v / (1 - s["beta2"] ** (step + 1))
                u = m_hat / (np.sqrt(v_hat) + s["eps"]) + decay * w
                w = w - lr * (norm(w) / norm(u) if is_layer else 1.0) * u
        ends[name] = x if rule == "schedule-free-adamw" else w
    return ends


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    random = np.random.Generator(np.random.PCG64(20252))
    tensors, problem = {}, {}
    for name, shape in SHAPES.items():
        start = random.standard_normal(shape).astype(np.float32)
        slope = random.uniform(0.2, 2.0, shape).astype(np.float32)
        goal = random.standard_normal(shape).astype(np.float32)
        tensors |= {f"start.{name}": start, f"slope.{name}": slope, f"goal.{name}": goal}
        problem[name] = tuple(x.astype(np.float64) for x in (start, slope, goal))
    for rule in RATES:
        run = by_torch if rule in BY_TORCH else by_paper
        copy = {name: (start.copy(), slope, goal) for name, (start, slope, goal) in problem.items()}
        for name, end in run(rule, copy).items():
            tensors[f"{rule}.{name}"] = end.astype(np.float32)
    metadata = {
        "torch": torch.__version__, "settings": json.dumps(SETTINGS), "rates": json.dumps(RATES),
    }
    content = to_safetensors(tensors, metadata)
    path = FOLDER / "optimizers.safetensors"
    print(f"{path.name}: {len(content)} bytes")
    if not check:
        path.write_bytes(content)
    elif not path.exists() or path.read_bytes() != content:
        sys.exit(f"not what this machine computes: {path.name}")


if __name__ == "__main__":
    main()
