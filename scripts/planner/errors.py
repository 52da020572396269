#!/usr/bin/env python3
"""Predicted beside measured, over many recipes: memory, bytes and time.

    scripts/planner/errors.py --binary target/release/lockstep            # everything
    scripts/planner/errors.py --binary target/release/lockstep --models 1M,10M

Trains every recipe for some steps with `lockstep train --json` and prints a table: what was
predicted before the run, what was measured, and the error in percent. Time needs a machine that
was measured (`lockstep plan calibrate`). The last lines have the median and the worst error.
"""

import argparse
import json
import statistics
import subprocess
import tempfile

# Steps of large models are made short: eight sequences of 64 tokens.
SHORT = ["model.context=64", "train.batch=8", "train.microbatch=1"]

# Name, settings: about 1, 10, 50 and 200 million parameters.
MODELS = [
    ("1M", ["model.width=128", "model.heads=4", "model.kv_heads=4", "model.ffn=384", "model.layers=4"]),
    ("10M", ["model.width=384", "model.heads=6", "model.kv_heads=6", "model.ffn=1024", "model.layers=6"]),
    ("50M", ["model.width=768", "model.heads=12", "model.kv_heads=12", "model.ffn=2048", "model.layers=7", *SHORT]),
    ("200M", ["model.width=1024", "model.heads=16", "model.kv_heads=16", "model.ffn=4096", "model.layers=12", *SHORT]),
]
# Workers, ZeRO stage, recompute: every value meets most others.
LAYOUTS = [
    (1, 0, "none"),
    (1, 0, "selective"),
    (1, 0, "full"),
    (2, 0, "none"),
    (2, 1, "full"),
    (2, 2, "selective"),
    (2, 3, "none"),
    (4, 1, "none"),
    (4, 3, "full"),
    (8, 0, "full"),
    (8, 2, "none"),
    (8, 3, "selective"),
]
COMMON = ["train.batch=16", "train.microbatch=2", "train.eval_batches=1", "run.save_optimizer=false"]


def train(binary, sets, steps):
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "train", "--json", "--quiet", "--set", f"run.dir={folder}/run"]
        for setting in [*COMMON, f"train.steps={steps}", *sets]:
            command += ["--set", setting]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        if finished.returncode != 0:
            return finished.stderr.strip().splitlines()[-1]
        return json.loads(finished.stdout)


def error(predicted, measured):
    return None if predicted is None else 100 * (predicted / measured - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="target/release/lockstep")
    parser.add_argument("--models", default=",".join(name for name, _ in MODELS))
    parser.add_argument("--layouts", type=int, default=len(LAYOUTS), help="only so many layouts")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    print(f"{'model':>5} {'workers':>7} {'zero':>4} {'recompute':>9}   peak MiB: said, was, error"
          f"     step s: said, was, error      moved")
    errors = {"peak": [], "step": []}
    wanted = arguments.models.split(",")
    for name, model in (pair for pair in MODELS if pair[0] in wanted):
        for workers, zero, recompute in LAYOUTS[: arguments.layouts]:
            sets = [f"model.context={arguments.context}", *model, f"run.workers={workers}",
                    f"parallel.zero={zero}", f"parallel.recompute={recompute}"]
            found = train(arguments.binary, sets, arguments.steps)
            head = f"{name:>5} {workers:>7} {zero:>4} {recompute:>9}"
            if isinstance(found, str):
                print(head, found)
                continue
            peak = error(found["predicted_peak_bytes"], found["peak_rss_bytes"])
            errors["peak"].append(abs(peak))
            line = (f"{head}   {found['predicted_peak_bytes'] / 2**20:9.1f}"
                    f" {found['peak_rss_bytes'] / 2**20:9.1f} {peak:+6.1f} %")
            step = error(found["predicted_step_seconds"], found["step_seconds_median"])
            if step is not None:
                errors["step"].append(abs(step))
                line += (f"   {found['predicted_step_seconds']:8.3f}"
                         f" {found['step_seconds_median']:8.3f} {step:+6.1f} %")
            if found["predicted_wire_bytes"] is not None:
                same = found["predicted_wire_bytes"] == found["wire_bytes"]
                line += "   exact" if same else f"   {found['predicted_wire_bytes']} != {found['wire_bytes']}"
            print(line, flush=True)
    for what, values in errors.items():
        if values:
            print(f"{what}: median {statistics.median(values):.1f} %, worst {max(values):.1f} %")


if __name__ == "__main__":
    main()
