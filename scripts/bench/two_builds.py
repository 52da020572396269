#!/usr/bin/env python3
"""Compares two builds: equal results on many recipes, and the speed of both in turns.

    two_builds.py BEFORE AFTER                    results, then speed
    two_builds.py BEFORE AFTER --only results
    two_builds.py BEFORE AFTER --only speed --rounds 9

Results: every recipe below runs with both binaries; `losses_hash`, `weights_hash` and `wire_bytes`
must be equal, where the recipe decides them. Speed: `bench train` and `bench comm` alternate as
before after, after before, ...; printed is the median of the ratios of AFTER to BEFORE, above one
where AFTER is faster. Exits with 1 if a result differs or a median is below --least.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SMALL = [
    "model.width=64", "model.heads=4", "model.kv_heads=2", "model.ffn=128", "model.layers=4",
    "model.context=32", "train.batch=16", "train.microbatch=2", "train.steps=12",
    "train.eval_batches=1", "numerics.invariant_up_to=8",
]
SERVER = ["sync.mode=parameter-server", "run.workers=2"]
FEDERATED = [
    "sync.mode=federated", "federated.clients=9", "federated.sampled=4", "optim.name=sgd",
    "optim.schedule=constant", "sync.local_steps=3", "run.workers=2",
]
RECIPES = {
    "one worker": [],
    "momentum": ["optim.name=momentum", "optim.lr=0.05"],
    "lamb": ["optim.name=lamb"],
    "two workers": ["run.workers=2"],
    "zero 1": ["run.workers=4", "parallel.zero=1"],
    "zero 2": ["run.workers=4", "parallel.zero=2"],
    "zero 3": ["run.workers=4", "parallel.zero=3"],
    "zero 3, no overlap": ["run.workers=2", "parallel.zero=3", "parallel.overlap=false"],
    "pipeline": ["run.workers=2", "parallel.pipeline=2"],
    "pipeline, gpipe": ["run.workers=4", "parallel.pipeline=2", "parallel.schedule=gpipe"],
    "pipeline, zero bubble": ["run.workers=2", "parallel.pipeline=2", "parallel.schedule=zero-bubble"],
    "tensor": ["run.workers=2", "parallel.tensor=2", "numerics.invariant_tensor_up_to=2"],
    "tensor and pipeline": [
        "run.workers=4", "parallel.tensor=2", "parallel.pipeline=2",
        "numerics.invariant_tensor_up_to=2",
    ],
    "recompute": ["run.workers=2", "parallel.recompute=full"],
    "bf16": ["run.workers=2", "precision.compute=bf16"],
    "bf16 gradients": ["run.workers=2", "precision.wire=bf16"],
    "local sgd": ["run.workers=2", "sync.mode=local-sgd", "sync.local_steps=3"],
    "diloco": ["run.workers=2", "sync.mode=local-sgd", "sync.local_steps=3", "sync.outer=nesterov"],
    "fragments": [
        "run.workers=2", "sync.mode=local-sgd", "sync.local_steps=3", "sync.fragments=2",
    ],
    "gossip": ["run.workers=4", "sync.mode=gossip", "sync.graph=ring"],
    "push-sum": ["run.workers=4", "sync.mode=gossip", "sync.graph=exponential"],
    "top-k": ["run.workers=2", "compress.method=top-k", "compress.ratio=0.1"],
    "power-sgd": ["run.workers=2", "compress.method=power-sgd"],
    "int8": ["run.workers=2", "compress.method=int8"],
    "sign": ["run.workers=2", "compress.method=sign"],
    "qsgd": ["run.workers=2", "compress.method=qsgd"],
    "servers": [*SERVER, "sync.consistency=sync", "sync.servers=2"],
    "servers, compressed": [*SERVER, "sync.consistency=sync", "compress.method=int8"],
    "federated": FEDERATED,
    "scaffold": [*FEDERATED, "federated.method=scaffold"],
    "no clipping": ["run.workers=4", "optim.clip=0"],
}
RESULTS = ("losses_hash", "weights_hash", "wire_bytes")

# Name and arguments of `bench train`.
STEPS = {
    "one worker": ["--set", "run.workers=1"],
    "two workers": ["--set", "run.workers=2"],
    "two workers, ZeRO-3": ["--set", "run.workers=2", "--set", "parallel.zero=3"],
}
SIZES = "1KiB,16KiB,256KiB,1MiB,16MiB"


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        return None, done.stderr.strip().split("\n")[0]
    return json.loads(done.stdout), None


def results(binary, sets):
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "train", "--quiet", "--json"]
        for setting in (*SMALL, *sets, f"run.dir={folder}/run"):
            command += ["--set", setting]
        summary, error = run(command, folder)
        return error or tuple(summary.get(key) for key in RESULTS)


def compare_results(before, after):
    differing = 0
    for name, sets in RECIPES.items():
        one, other = results(before, sets), results(after, sets)
        is_equal = one == other and not isinstance(one, str)
        differing += not is_equal
        print(f"{'equal ' if is_equal else 'DIFFER'} {name:24} {one if is_equal else (one, other)}", flush=True)
    print(f"{len(RECIPES) - differing} of {len(RECIPES)} recipes give equal results")
    return differing == 0


def train_speed(binary, arguments):
    with tempfile.TemporaryDirectory() as folder:
        figures, error = run([binary, "bench", "train", "--json", "--steps", "20", *arguments], folder)
        if error:
            sys.exit(f"bench train {arguments}: {error}")
        return {"tokens/s": figures["tokens_per_second"]}


def comm_speed(binary, ranks):
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "bench", "comm", "--json", "--ranks", str(ranks), "--bytes", SIZES]
        figures, error = run([*command, "--seconds", "0.2"], folder)
        if error:
            sys.exit(f"bench comm: {error}")
        return {f"{row['bytes']} B": 1 / row["median_us"] for row in figures}


def alternate(name, measure, binaries, rounds):
    """Median ratio of the second binary to the first, by figure."""
    ratios = {}
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        found = {at: measure(binaries[at]) for at in order}
        for key, value in found[0].items():
            ratios.setdefault(key, []).append(found[1][key] / value)
    least = 1.0
    for key, values in ratios.items():
        middle = statistics.median(values)
        least = min(least, middle)
        print(f"{name:24} {key:>10} median {middle:.3f} ({min(values):.3f} to {max(values):.3f})", flush=True)
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=os.path.abspath)
    parser.add_argument("after", type=os.path.abspath)
    parser.add_argument("--only", choices=["results", "speed"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ranks", type=int, default=4, help="of bench comm")
    parser.add_argument("--least", type=float, default=0.98, help="least median ratio")
    arguments = parser.parse_args()
    binaries = (arguments.before, arguments.after)
    is_good = arguments.only == "speed" or compare_results(*binaries)
    if arguments.only != "results":
        speeds = [
            alternate(f"train, {name}", lambda binary: train_speed(binary, sets), binaries, arguments.rounds)
            for name, sets in STEPS.items()
        ]
        comm = lambda binary: comm_speed(binary, arguments.ranks)
        speeds.append(alternate(f"all-reduce, {arguments.ranks} ranks", comm, binaries, arguments.rounds))
        is_good &= min(speeds) >= arguments.least
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
