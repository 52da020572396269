#!/usr/bin/env python3
"""Trains with a Prometheus endpoint, scrapes it, and parses the pages with prometheus_client.

    pip install -r scripts/telemetry/requirements.txt
    python3 scripts/telemetry/check_prometheus.py target/release/lockstep

Scrapes repeat until the run ends. Every page must parse; the counter of steps never falls; and the
values of a page are those of the event file at the page's step.
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

import events

# Metrics that one event sets together, so that a page has all of them of one step.
OF_STEP = events.STEP.values()


def scrape(port):
    """A page, or nothing while there is no endpoint."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.headers["Content-Type"], answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return None


def parse(page):
    """Values by name; labels are part of the name."""
    found = {}
    for family in text_string_to_metric_families(page):
        if not family.documentation:
            sys.exit(f"{family.name} has no help")
        for sample in family.samples:
            found[(sample.name, tuple(sorted(sample.labels.items())))] = sample.value
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("binary", help="lockstep")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        run = os.path.join(folder, "run")
        command = [os.path.abspath(arguments.binary), "train", "--quiet"]
        sets = (f"telemetry.prometheus=127.0.0.1:{port}", f"run.dir={run}")
        for setting in (*arguments.set, *sets):
            command += ["--set", setting]
        training = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        pages = []
        while training.poll() is None:
            page = scrape(port)
            if page is not None:
                pages.append(page)
            time.sleep(0.02)
        if training.returncode != 0:
            sys.exit(f"the run failed with exit code {training.returncode}")
        expected = events.scalars(events.read(run))
    if not pages:
        sys.exit("no page was scraped; train longer")
    num_steps, num_values = 0, 0
    for kind, page in pages:
        if not kind.startswith("text/plain; version=0.0.4"):
            sys.exit(f"content type {kind}")
        values = parse(page)
        step = values[("lockstep_steps_total", ())]
        if step < num_steps:
            sys.exit(f"the counter of steps falls from {num_steps} to {step}")
        num_steps = step
        for tag in OF_STEP:
            value = values.get(("lockstep_" + tag.replace("/", "_"), ()))
            if value is None:
                continue
            if (step, value) not in expected[tag]:
                sys.exit(f"{tag} is {value} at step {step}, and not in the event file")
            num_values += 1
    steps = {parse(page)[("lockstep_steps_total", ())] for _, page in pages}
    print(f"{len(pages)} pages of {len(steps)} steps parse; {num_values} values of steps are equal")


if __name__ == "__main__":
    main()
