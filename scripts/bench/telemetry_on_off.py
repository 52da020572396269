#!/usr/bin/env python3
"""The cost of telemetry: runs with all of it and without it, in turns.

    python3 scripts/bench/telemetry_on_off.py target/release/lockstep --pairs 9 --seconds 60

Runs alternate as on off, off on, ...: neighbours in time share the state of the machine. With
telemetry a run writes TensorBoard files and CSV, serves Prometheus (scraped once a second), exports
by OTLP to a collector of this script, and traces every tenth step. Printed are the pairs and the
median of the ratios of the median step times; the goal is less than 1 % over 1.
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
import urllib.request

GOAL = 0.01


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


def train(arguments, steps, sets):
    """Median step seconds and the hashes of a run."""
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        run = os.path.join(folder, "run")
        command = [os.path.abspath(arguments.binary), "train", "--quiet", "--json"]
        if arguments.preset:
            command += ["--preset", arguments.preset]
        fixed = (f"train.steps={steps}", "train.eval_every=0", f"run.dir={run}")
        for setting in (*arguments.set, *fixed, "checkpoint.interval=0", *sets):
            command += ["--set", setting]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"exit code {done.returncode}: {' '.join(command)}\n{done.stderr[-2000:]}")
        summary = json.loads(done.stdout)
        hashes = (summary["losses_hash"], summary["weights_hash"])
        return summary["step_seconds_median"], hashes


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
        "telemetry.trace_every=10",
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
        step_seconds, _ = train(arguments, 20, ())
        steps = max(20, round(arguments.seconds / step_seconds))
    print(f"{arguments.pairs} pairs of runs of {steps} steps")
    ratios = []
    for number in range(arguments.pairs):
        if number % 2 == 0:
            on, off = with_telemetry(steps), train(arguments, steps, ())
        else:
            off = train(arguments, steps, ())
            on = with_telemetry(steps)
        if on[1] != off[1]:
            sys.exit("the results differ: telemetry has changed bits")
        ratios.append(on[0] / off[0])
        times = f"on {1e3 * on[0]:8.3f} ms   off {1e3 * off[0]:8.3f} ms"
        print(f"{times}   ratio {ratios[-1]:.4f}", flush=True)
    if Collector.num_requests == 0:
        sys.exit("the collector received nothing")
    overhead = statistics.median(ratios) - 1
    verdict = "met" if overhead < GOAL else "missed"
    print(f"median overhead {100 * overhead:.2f} %, goal below {100 * GOAL:.0f} %: {verdict}")


if __name__ == "__main__":
    main()
