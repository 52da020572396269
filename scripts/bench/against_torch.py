#!/usr/bin/env python3
"""Alternates `lockstep bench train --json` with a PyTorch script and compares speed and memory.

    cargo build --release
    python3 scripts/bench/against_torch.py target/release/lockstep \\
        --python VENV/bin/python --torch-script BASELINE.py

The two take turns, and who goes first changes every round, so that a machine that slows down or
speeds up does so to both. The result is the median over the rounds of our tokens/s divided by
theirs in the same round. Peak memory is what the kernel counted for each child process; it counts
from the fork, so nothing under this script's own size (some 15 MiB) can be seen. The PyTorch
script prints a line that contains `2688 tok/s`; it needs no other convention.

This file itself needs Python alone.
"""

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile

TORCH_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?) tok/s")
MEBIBYTE = 2**20


def run(command):
    """Runs a child to its end; its standard output and its peak memory in bytes."""
    with tempfile.TemporaryFile("w+") as output:
        try:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output)
        except OSError as error:
            sys.exit(f"cannot start `{shlex.join(command)}`: {error.strerror}")
        # wait4 and not wait: it returns the counters of this child only.
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if child.returncode != 0:
        sys.exit(f"`{shlex.join(command)}` failed with exit status {child.returncode}")
    # Linux counts kibibytes, macOS bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return text, usage.ru_maxrss * unit


def lockstep_rate(text):
    """Tokens per second out of the one JSON value that `--json` prints."""
    try:
        return float(json.loads(text)["tokens_per_second"])
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"cannot read tokens_per_second from lockstep's output ({error!r}): {text!r}")


def torch_rate(text):
    """Tokens per second out of the line `... 2688 tok/s ...`."""
    found = TORCH_RATE.search(text)
    if found is None:
        sys.exit(f"no `... tok/s` in the output of the PyTorch script: {text!r}")
    return float(found.group(1))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lockstep", help="path of the release binary")
    parser.add_argument("--torch-script", required=True, help="path of the PyTorch baseline")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of one run each (default 5)")
    parser.add_argument("--lockstep-args", default="", help="more arguments, in one string")
    parser.add_argument(
        "--torch-args", default="f32 1", help="arguments of the script (default 'f32 1')"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value instead")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    return arguments


def main():
    arguments = parse_arguments()
    ours = [arguments.lockstep, "bench", "train", "--json", *shlex.split(arguments.lockstep_args)]
    theirs = [arguments.python, arguments.torch_script, *shlex.split(arguments.torch_args)]
    rounds = []
    for number in range(1, arguments.rounds + 1):
        measured = {}
        turns = [("lockstep", ours, lockstep_rate), ("torch", theirs, torch_rate)]
        for name, command, rate_of in turns if number % 2 else reversed(turns):
            text, peak_bytes = run(command)
            measured[f"{name}_tokens_per_second"] = rate_of(text)
            measured[f"{name}_peak_bytes"] = peak_bytes
        ratio = measured["lockstep_tokens_per_second"] / measured["torch_tokens_per_second"]
        rounds.append(measured | {"ratio": ratio})
        print(
            f"round {number}: lockstep {measured['lockstep_tokens_per_second']:.0f} tok/s,"
            f" torch {measured['torch_tokens_per_second']:.0f} tok/s, ratio {ratio:.3f}",
            file=sys.stderr,
            flush=True,
        )
    result = {
        "rounds": rounds,
        "ratio_median": statistics.median(r["ratio"] for r in rounds),
        "lockstep_peak_bytes_max": max(r["lockstep_peak_bytes"] for r in rounds),
        "torch_peak_bytes_max": max(r["torch_peak_bytes"] for r in rounds),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"median of the ratios: {result['ratio_median']:.3f} over {len(rounds)} rounds")
    print(
        f"peak memory: lockstep {result['lockstep_peak_bytes_max'] / MEBIBYTE:.0f} MiB,"
        f" torch {result['torch_peak_bytes_max'] / MEBIBYTE:.0f} MiB"
    )


if __name__ == "__main__":
    main()
