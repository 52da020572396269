#!/usr/bin/env python3
"""The cost of telemetry: runs with all of it and without it, in turns.

    python3 scripts/bench/telemetry_on_off.py target/release/lockstep --pairs 9 --seconds 60

Runs alternate as on off, off on, ...: neighbours in time share the state of the machine. With
telemetry a run writes TensorBoard files and CSV, serves Prometheus (scraped once a second), exports
by OTLP to a collector of this script, traces at its default interval, makes histograms and measures
the gradient noise. Without it, all of these are off; events.jsonl remains, which no key turns off.

Compared is the mean time of a step: from the end of the first step to the end of the last one, over
their number, by the clock of events.jsonl. It has what telemetry does between steps, in traced steps
and at evaluations, which a median of step times has not. Printed are the pairs and the median of
their ratios, whose goal is less than 1 % over 1; beside it that of the median step times, which have
neither exporters nor rare steps.
"""

import argparse
import http.server
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import typing
import urllib.request

GOAL = 0.01

# The default interval traces step 64 first.
FEWEST_STEPS = 64

# Evaluations of a run: ranks exchange counters and gradient noise at each.
NUM_EVALUATIONS = 4

OFF = (
    "telemetry.tensorboard=false",
    "telemetry.csv=false",
    "telemetry.trace=false",
    "telemetry.noise_scale=0",
    "telemetry.histograms_every=0",
    "telemetry.prometheus=",
    "telemetry.otlp=",
)


class Collector(http.server.BaseHTTPRequestHandler):
    """Accepts metrics and counts the requests."""

    num_requests = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        Collector.num_requests += 1
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def scrape(port, stop):
    """Reads the endpoint once a second while a run lasts."""
    while not stop.wait(1):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                page.read()
        except OSError:
            pass


class Run(typing.NamedTuple):
    """Times of a run in seconds, and its hashes."""

    mean: float
    median: float
    hashes: tuple


def times_of(run):
    """Mean time of a step, with everything between the steps, and the median of the steps' own."""
    with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as lines:
        events = [json.loads(line) for line in lines]
    steps = [event for event in events if event["event"] == "step"]
    mean = (steps[-1]["seconds"] - steps[0]["seconds"]) / (len(steps) - 1)
    return mean, statistics.median(step["step_seconds"] for step in steps[1:])


def train(arguments, steps, sets):
    """A run of this many steps."""
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        run = os.path.join(folder, "run")
        command = [os.path.abspath(arguments.binary), "train", "--quiet", "--json"]
        if arguments.preset:
            command += ["--preset", arguments.preset]
        evaluations = (f"train.eval_every={-(-steps // NUM_EVALUATIONS)}", "train.eval_batches=1")
        fixed = (f"train.steps={steps}", *evaluations, f"run.dir={run}")
        for setting in (*arguments.set, *fixed, "checkpoint.interval=0", *sets):
            command += ["--set", setting]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}: {' '.join(command)}\n{done.stderr[-2000:]}")
        summary = json.loads(done.stdout)
        mean, median = times_of(run)
        return Run(mean, median, (summary["losses_hash"], summary["weights_hash"]))


def report(ratios, medians):
    """Prints the medians of the pairs' ratios, and whether the goal is met."""
    overhead = statistics.median(ratios) - 1
    verdict = "met" if overhead < GOAL else "missed"
    of_medians = statistics.median(medians) - 1
    print(f"overhead of the mean step   {100 * overhead:6.2f} %, goal below {100 * GOAL:.0f} %: {verdict}")
    print(f"overhead of the median step {100 * of_medians:6.2f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="release build of lockstep")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=60, help="duration of a run, about")
    parser.add_argument("--steps", type=int, help="steps of a run, in place of --seconds")
    parser.add_argument("--preset", help="recipe of the runs")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--dir", help="folder of the runs")
    arguments = parser.parse_args()
    collector = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    telemetry = (
        "telemetry.tensorboard=true",
        "telemetry.csv=true",
        "telemetry.trace=true",
        "telemetry.noise_scale=10",
        "telemetry.histograms_every=100",
        f"telemetry.prometheus=127.0.0.1:{port}",
        f"telemetry.otlp=http://127.0.0.1:{collector.server_port}",
    )

    def with_telemetry(steps):
        stop = threading.Event()
        scraper = threading.Thread(target=scrape, args=(port, stop))
        scraper.start()
        try:
            return train(arguments, steps, telemetry)
        finally:
            stop.set()
            scraper.join()

    steps = arguments.steps
    if steps is None:
        steps = max(FEWEST_STEPS, round(arguments.seconds / train(arguments, 20, OFF).mean))
    if steps < FEWEST_STEPS:
        sys.exit(f"a run of {steps} steps traces none: at least {FEWEST_STEPS}")
    print(f"{arguments.pairs} pairs of runs of {steps} steps")
    ratios, medians = [], []
    for number in range(arguments.pairs):
        if number % 2 == 0:
            on, off = with_telemetry(steps), train(arguments, steps, OFF)
        else:
            off = train(arguments, steps, OFF)
            on = with_telemetry(steps)
        if on.hashes != off.hashes:
            sys.exit("the results differ: telemetry has changed bits")
        ratios.append(on.mean / off.mean)
        medians.append(on.median / off.median)
        times = f"on {1e3 * on.mean:8.3f} ms   off {1e3 * off.mean:8.3f} ms"
        print(f"{times}   ratio {ratios[-1]:.4f}   of medians {medians[-1]:.4f}", flush=True)
    if Collector.num_requests == 0:
        sys.exit("the collector received nothing")
    report(ratios, medians)


if __name__ == "__main__":
    main()
