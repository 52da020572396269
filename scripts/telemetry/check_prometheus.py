#!/usr/bin/env python3
"""Trains with a Prometheus endpoint, scrapes it, and parses the pages with prometheus_client.

    python3 scripts/telemetry/check_prometheus.py --lockstep target/release/lockstep

Scrapes repeat until a run ends. Every page must parse, and have exactly the values that the event
file has up to some event: all metrics, those with labels too, and neither more nor fewer. Later
pages are of later events.
"""

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import events
import runs

# Labels of the tags that end with values of labels; a rank is the last part of any other path.
LABELS = {
    "bytes/algorithm": ("axis", "algorithm"),
    "tasks/score": ("task", "score"),
    "tasks/log_likelihood": ("task",),
    "sync/staleness_mean": ("worker",),
    "sync/staleness_max": ("worker",),
    "server/applied_pushes": ("worker",),
    "server/discarded_pushes": ("worker",),
    "server/skipped_pushes": ("worker",),
}
# Values of the run, which no tag has.
INFO = "lockstep_run_info"


def scrape(port):
    """A page, or nothing while there is no endpoint."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return answer.headers["Content-Type"], answer.read().decode()
    except (urllib.error.URLError, ConnectionError):
        return None


def bits(value):
    """Not a number differs from itself, so the bits are compared."""
    return struct.pack("d", value)


def parse(page):
    """Values by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(page):
        if not family.documentation:
            sys.exit(f"{family.name} has no help")
        for sample in family.samples:
            if sample.name != INFO:
                found[(sample.name, tuple(sorted(sample.labels.items())))] = bits(sample.value)
    return found


def key(tag):
    """Name and labels of a tag."""
    metric, names = tag, ()
    for path, labels in LABELS.items():
        if tag.startswith(path + "/"):
            metric, names = path, labels
    if tag.startswith("ranks/"):
        metric, names = tag.rsplit("/", 1)[0], ("worker",)
    values = tag[len(metric) + 1:].split("/", max(len(names) - 1, 0)) if names else ()
    return "lockstep_" + metric.replace("/", "_"), tuple(sorted(zip(names, values)))


def tables(recorded):
    """What a page should have after each event, in one table that changes."""
    table = {("lockstep_steps_total", ()): bits(0.0), ("lockstep_skipped_steps_total", ()): bits(0.0)}
    num_skipped = 0
    yield table
    for event in recorded:
        if event["event"] == "step":
            num_skipped += event["is_skipped"]
            table[("lockstep_steps_total", ())] = bits(float(event["step"]))
            table[("lockstep_skipped_steps_total", ())] = bits(float(num_skipped))
        for tag, value in events.scalars_of(event):
            table[key(tag)] = bits(value)
        yield table


def compare(pages, recorded):
    """Ends the script unless every page is the table after some event, in order; returns what was
    compared."""
    metrics, num_values = set(), 0
    states = tables(recorded)
    state = next(states)
    for page in pages:
        before = dict(state)
        while state != page:
            state = next(states, None)
            if state is None:
                wrong = {at for at in {*before, *page} if before.get(at) != page.get(at)}
                sys.exit(f"no event is followed by this page; it differs in {sorted(wrong)[:8]}")
        metrics |= set(page)
        num_values += len(page)
    return metrics, num_values


def scraped(lockstep, folder, name):
    """Pages of a run, as text, and its events."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Long enough for some pages with everything that an evaluation adds.
    sets = (f"telemetry.prometheus=127.0.0.1:{port}", "train.steps=200")
    training = subprocess.Popen(runs.command(lockstep, folder, name, sets), cwd=folder,
                                stdout=subprocess.DEVNULL)
    pages = []
    while training.poll() is None:
        page = scrape(port)
        if page is not None:
            pages.append(page)
        time.sleep(0.02)
    if training.returncode != 0:
        sys.exit(f"{name} failed with exit code {training.returncode}")
    return pages, events.read(os.path.join(folder, name))


def main():
    parser = runs.parser(__doc__)
    arguments = parser.parse_args()
    runs.use(arguments)
    if not arguments.lockstep:
        parser.error("--lockstep")
    for name in runs.RUNS:
        with tempfile.TemporaryDirectory() as folder:
            pages, recorded = scraped(arguments.lockstep, folder, name)
        kinds = {kind for kind, _ in pages if not kind.startswith("text/plain; version=0.0.4")}
        if kinds:
            sys.exit(f"content types {kinds}")
        metrics, num_values = compare([parse(page) for _, page in pages], recorded)
        labelled = sum(1 for _, labels in metrics if labels)
        if labelled == 0:
            sys.exit(f"{name}: no page has a value with labels; train longer")
        print(f"{name}: {len(pages)} pages parse; {num_values} values of {len(metrics)} metrics, "
              f"{labelled} with labels, are those of the event file", flush=True)


if __name__ == "__main__":
    main()
