#!/usr/bin/env python3
"""What checkpoints cost: bandwidth beside dd, stall beside the interval, recovery after SIGKILL.

    python3 scripts/checkpoints/measure.py target/release/lockstep --pairs 15

Prints a table of medians and ranges, with the goals. Run it on a quiet machine, from the disk that
is to be measured (--dir). Nothing is left behind.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def train(binary, folder, *sets, steps):
    """Trains and returns the events of the run."""
    command = [binary, "train", "--quiet", "--json", "--set", f"train.steps={steps}"]
    run = os.path.join(folder, "run")
    for setting in (*sets, f"run.dir={run}"):
        command += ["--set", setting]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def saved(events):
    return [event for event in events if event["event"] == "checkpoint_saved"]


def dd_seconds(folder, num_bytes):
    """Writes as many bytes as a checkpoint has, synced, as fast as the system can."""
    path = os.path.join(folder, "dd")
    block = 1 << 20
    count = max(1, round(num_bytes / block))
    command = ["dd", "if=/dev/zero", f"of={path}", f"bs={block}", f"count={count}", "conv=fsync"]
    began = time.monotonic()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    seconds = time.monotonic() - began
    os.unlink(path)
    return seconds * num_bytes / (block * count)


def bandwidth(arguments):
    """Checkpoints of a model of some size beside dd, in turns."""
    shape = [
        "model.width=768", "model.layers=6", "model.heads=12", "model.context=16",
        "train.batch=8", "train.microbatch=1", "train.eval_every=0", "train.eval_batches=1",
        "run.workers=1", "checkpoint.every=1", "checkpoint.background=false",
        "checkpoint.keep=1", "run.save_optimizer=false", *arguments.set,
    ]
    rows = []
    for _ in range(arguments.pairs):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            # The last step is saved as the result of the run, not as a checkpoint. The first few
            # checkpoints find memory that was never touched, ours and the system's.
            event = saved(train(arguments.binary, folder, *shape, steps=6))[-1]
            rows.append((event["bytes"], event["write_seconds"],
                         dd_seconds(folder, event["bytes"])))
    ours = [size / seconds / 1e6 for size, seconds, _ in rows]
    dd = [size / seconds / 1e6 for size, _, seconds in rows]
    shares = [100 * a / b for a, b in zip(ours, dd)]
    yield "size of a checkpoint", "MB", [rows[0][0] / 1e6], ""
    yield "checkpoint", "MB/s", ours, ""
    yield "dd conv=fsync", "MB/s", dd, ""
    yield "checkpoint / dd, by pair", "%", shares, "at least 80"


def stall(arguments):
    """What a step waits for a checkpoint that is written beside training."""
    every = 5
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        sets = ["checkpoint.interval=auto", f"checkpoint.every={every}", "train.eval_every=0"]
        steps = (arguments.pairs + 1) * every + 1
        events = saved(train(arguments.binary, folder, *sets, *arguments.set, steps=steps))
    events = events[1:]
    yield "stall of a checkpoint", "ms", [1e3 * e["stall_seconds"] for e in events], ""
    yield "interval that auto takes", "s", [e["interval_seconds"] for e in events], ""
    shares = [100 * e["stall_seconds"] / e["interval_seconds"] for e in events]
    yield "stall / interval", "%", shares, "below 1"


# Kills of one drill.
KILLS = 3


def recovery(arguments):
    """From a SIGKILL to the next finished step, by drills of a few kills each.

    Kills in quick succession would measure the pauses that grow from one restart to the next."""
    kills = []
    for seed in range(1, 2 + (arguments.pairs - 1) // KILLS):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            command = [arguments.binary, "drill", "--quiet", "--json",
                       "--kills", str(KILLS), "--seed", str(seed),
                       "--out", os.path.join(folder, "drill"),
                       "--set", "checkpoint.every=5", "--set", "train.eval_every=0",
                       "--set", f"train.steps={15 * (KILLS + 1)}",
                       "--set", "train.eval_batches=1"]
            for setting in arguments.set:
                command += ["--set", setting]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        kills += json.loads(output)["kills"]
    yield "SIGKILL to the next step", "s", [k["recovery_seconds"] for k in kills], "below 3"
    yield "steps done again", "", [float(k["lost_steps"]) for k in kills], ""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", help="a release build of lockstep")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--dir", default=".", help="where to write")
    parser.add_argument("--set", action="append", default=[], help="one key of the recipe")
    parser.add_argument("--only", choices=["bandwidth", "stall", "recovery"])
    arguments = parser.parse_args()
    arguments.binary = os.path.abspath(arguments.binary)
    print(f"{'':28}{'median':>10}{'least':>10}{'most':>10}{'n':>4}  unit  goal")
    for part in (bandwidth, stall, recovery):
        if arguments.only not in (None, part.__name__):
            continue
        for name, unit, values, goal in part(arguments):
            if not values:
                sys.exit(f"{name}: the run gave no figure")
            middle, least, most = statistics.median(values), min(values), max(values)
            figures = f"{middle:>10.3f}{least:>10.3f}{most:>10.3f}{len(values):>4}"
            print(f"{name:28}{figures}  {unit:4}  {goal}", flush=True)


if __name__ == "__main__":
    main()
