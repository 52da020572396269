#!/usr/bin/env python3
"""Alternates `lockstep bench comm --json` with other libraries' all-reduce and compares times.

    cargo build --release
    python3 scripts/bench/against_peers.py target/release/lockstep --harness DIR --home DIR

The harness folder holds `run.py`, which runs one library on a list of sizes and prints one JSON
object a line (`bytes`, `med_us`, `bad`); the home folder holds what it needs: the libraries in
virtual environments and its compiled programs. Both sides rewrite their buffers before every timed
call, meet at a barrier in shared memory that belongs to neither library, and count the slowest
rank. The libraries take turns with ours, so that a machine that slows down does so to all.

A cell is the median of the rounds' medians up to 64 KiB and the best round's median above, where
other work on the machine only adds time. The goals are those of two ranks on one host with
buffers in shared memory: 0.6 of the fastest peer's time at 1 KiB, 0.4 from 16 KiB on, and 1.45
times the sweep over memory from 16 KiB on.

This file itself needs Python alone.
"""

import argparse
import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = [1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20]
PEERS = "ompi4,ompi5,mpich4,mpich5,impi,gloo"
SMALL_BYTES = 64 << 10


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lockstep", help="path of the release binary")
    parser.add_argument("--harness", required=True, help="folder with run.py")
    parser.add_argument("--home", required=True, help="folder with the libraries")
    parser.add_argument("--libs", default=PEERS, help=f"peers (default {PEERS})")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="bytes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.15, help="time a size (default 0.15)")
    parser.add_argument("--lockstep-args", default="", help="more arguments, in one string")
    parser.add_argument("--prefix", default="", help="command to run each measurement under")
    parser.add_argument("--keep", help="append all rows to this file, as JSON lines")
    parser.add_argument("--only-report", action="store_true", help="only read the kept rows")
    return parser.parse_args()


def load_harness(folder):
    """The harness's module; it only defines functions."""
    path = Path(folder) / "run.py"
    spec = importlib.util.spec_from_file_location("harness", path)
    if spec is None or not path.exists():
        sys.exit(f"there is no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ours(arguments, sizes):
    """Our rows: size, median, time of the sweep over memory."""
    command = [*arguments.prefix.split(), arguments.lockstep, "bench", "comm", "--json"]
    command += ["--ranks", str(arguments.ranks), "--bytes", ",".join(map(str, sizes))]
    command += ["--seconds", str(arguments.seconds), *arguments.lockstep_args.split()]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = json.loads(text[text.index("["):])
    wrong = [row for row in rows if not row["verified"]]
    if wrong:
        sys.exit(f"our results are wrong: {wrong}")
    return [
        {"lib": "lockstep", "bytes": row["bytes"], "med_us": row["median_us"],
         "limit_us": row["limit_us"], "algorithm": row["algorithm"]}
        for row in rows
    ]


def remove_stale_barriers():
    """Removes the barriers of runs that were killed."""
    for path in Path("/dev/shm").glob("lockstep_bench_*"):
        owner = re.fullmatch(r"lockstep_bench_(\d+)", path.name)
        if owner and not Path("/proc", owner[1]).exists():
            path.unlink(missing_ok=True)


def theirs(harness, arguments, lib, sizes):
    """A peer's rows; those that failed or were wrong are reported and left out."""
    barrier = os.path.join("/dev/shm", f"lockstep_bench_{os.getpid()}")
    try:
        rows = harness.one(arguments.home, lib, arguments.ranks, "allreduce",
                           ",".join(map(str, sizes)), arguments.seconds, barrier)
    finally:
        Path(barrier).unlink(missing_ok=True)
    good = [row for row in rows if "med_us" in row and not row.get("bad")]
    for row in rows:
        if row not in good:
            print(f"{lib}: {row}", file=sys.stderr)
    return [{"lib": lib, "bytes": row["bytes"], "med_us": row["med_us"]} for row in good]


def measure(arguments, sizes, keep):
    os.environ["MODE"] = "fresh"
    harness = load_harness(arguments.harness)
    rows = []
    for number in range(arguments.rounds):
        for lib in arguments.libs.split(","):
            for found in (ours(arguments, sizes), theirs(harness, arguments, lib, sizes)):
                for row in found:
                    row["round"] = number
                    rows.append(row)
                    print(json.dumps(row), file=keep, flush=True)
            print(f"round {number + 1}: {lib}", file=sys.stderr)
    return rows


def cell(rows, size, key):
    values = [row[key] for row in rows if row["bytes"] == size]
    if not values:
        return None
    return statistics.median(values) if size <= SMALL_BYTES else min(values)


def named(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def report(rows, sizes):
    libs = sorted({row["lib"] for row in rows} - {"lockstep"})
    own = [row for row in rows if row["lib"] == "lockstep"]
    head = ["size", *libs, "ours", "fastest", "ratio", "goal", "limit", "ours/limit", "goal"]
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for size in sizes:
        mine = cell(own, size, "med_us")
        limit = cell(own, size, "limit_us")
        peers = {lib: cell([r for r in rows if r["lib"] == lib], size, "med_us") for lib in libs}
        known = {lib: value for lib, value in peers.items() if value is not None}
        if mine is None or not known:
            continue
        fastest = min(known, key=known.get)
        ratio, over = mine / known[fastest], mine / limit
        goal = 0.6 if size <= 1024 else 0.4
        marks = ["met" if ratio <= goal else "MISSED", "met" if over <= 1.45 else "MISSED"]
        if size < 16 << 10:
            marks[1] = "-"
        times = ["-" if peers[lib] is None else f"{peers[lib]:.2f}" for lib in libs]
        cells = [named(size), *times, f"{mine:.2f}", fastest, f"{ratio:.2f}", f"{goal} {marks[0]}",
                 f"{limit:.2f}", f"{over:.2f}", f"1.45 {marks[1]}"]
        print("| " + " | ".join(cells) + " |")


def main():
    arguments = parse_arguments()
    # As on Ctrl-C, so that the barrier in shared memory is removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    remove_stale_barriers()
    sizes = [int(size) for size in arguments.sizes.split(",")]
    if arguments.only_report:
        rows = [json.loads(line) for line in Path(arguments.keep).read_text().splitlines()]
    elif arguments.keep:
        with open(arguments.keep, "a", encoding="utf-8") as keep:
            measure(arguments, sizes, keep)
        rows = [json.loads(line) for line in Path(arguments.keep).read_text().splitlines()]
    else:
        with tempfile.TemporaryFile("w") as keep:
            rows = measure(arguments, sizes, keep)
    report(rows, sizes)


if __name__ == "__main__":
    main()
