#!/usr/bin/env python3
"""The cost of the default checkpoints: runs with them and without them, in turns.

    python3 scripts/bench/checkpoints_on_off.py target/release/lockstep --pairs 9 --seconds 150

A run saves its first default checkpoint after a minute, so a shorter one shows only the cost of
agreeing on saving. Runs alternate as on off, off on, ...: neighbours in time share the state of the
machine. Printed are the pairs, the number of checkpoints, and the median of the ratios of the
times; the goal is less than 1 % over 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

GOAL = 0.01
OFF = "checkpoint.interval=0"


def train(arguments, steps, *more):
    """Seconds of a run from its start to its summary, its median step and its checkpoints."""
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        run = os.path.join(folder, "run")
        command = [os.path.abspath(arguments.binary), "train", "--quiet", "--json"]
        if arguments.preset:
            command += ["--preset", arguments.preset]
        sets = (f"train.steps={steps}", "train.eval_every=0", f"run.dir={run}")
        for setting in (*arguments.set, *sets, *more):
            command += ["--set", setting]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}: {' '.join(command)}\n{done.stderr[-2000:]}")
        summary = json.loads(done.stdout)
        with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as lines:
            events = [json.loads(line)["event"] for line in lines]
        hashes = (summary["losses_hash"], summary["weights_hash"])
        return (
            summary["seconds"],
            summary["step_seconds_median"],
            events.count("checkpoint_saved"),
            hashes,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="release build of lockstep")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=150, help="duration of a run, about")
    parser.add_argument("--steps", type=int, help="steps of a run, in place of --seconds")
    parser.add_argument("--preset", help="recipe of the runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--dir", help="folder on the disk to measure")
    arguments = parser.parse_args()
    steps = arguments.steps
    if steps is None:
        _, step_seconds, _, _ = train(arguments, 10, OFF)
        steps = max(10, round(arguments.seconds / step_seconds))
    print(f"{arguments.pairs} pairs of runs of {steps} steps")
    ratios = []
    for number in range(arguments.pairs):
        if number % 2 == 0:
            on, off = train(arguments, steps), train(arguments, steps, OFF)
        else:
            off = train(arguments, steps, OFF)
            on = train(arguments, steps)
        if on[3] != off[3]:
            sys.exit("the results differ: checkpoints have changed bits")
        ratios.append(on[0] / off[0])
        print(
            f"on {on[0]:8.2f} s ({on[2]} checkpoints)   off {off[0]:8.2f} s   "
            f"ratio {ratios[-1]:.4f}",
            flush=True,
        )
    overhead = statistics.median(ratios) - 1
    verdict = "met" if overhead < GOAL else "missed"
    print(f"median overhead {100 * overhead:+.2f} %, goal under {100 * GOAL:.0f} %: {verdict}")


if __name__ == "__main__":
    main()
