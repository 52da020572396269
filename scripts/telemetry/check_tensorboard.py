#!/usr/bin/env python3
"""Opens a run with TensorBoard and compares every scalar with the run's event file.

    pip install -r scripts/telemetry/requirements.txt
    lockstep train --set telemetry.tensorboard=true --set run.dir=run
    python3 scripts/telemetry/check_tensorboard.py run

The files are read twice: by EventAccumulator, and over HTTP from a TensorBoard server that this
script starts on a free port of this host. Values are 32-bit floats in TensorBoard.
"""

import argparse
import csv
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import events

SERVER_SECONDS = 120


def rounded(value):
    """The nearest 32-bit float."""
    return struct.unpack("f", struct.pack("f", value))[0]


def compare(source, expected, found):
    """Ends the script unless all scalars are there, once each, with their values."""
    if set(expected) != set(found):
        sys.exit(f"{source}: tags differ: {sorted(set(expected) ^ set(found))}")
    for tag, points in expected.items():
        rows = [(step, rounded(value)) for step, value in points]
        # Not a number differs from itself, so the bits are compared.
        bits = [[(step, struct.pack("f", value)) for step, value in it] for it in (rows, found[tag])]
        if bits[0] != bits[1]:
            at = next((i for i, pair in enumerate(zip(*bits)) if pair[0] != pair[1]), None)
            sys.exit(f"{source}: {tag} differs at point {at}: {len(rows)} and {len(found[tag])} points")
    number = sum(len(points) for points in expected.values())
    print(f"{source}: {len(expected)} tags, {number} scalars, all equal")


def accumulated(folder):
    """Scalars and texts as TensorBoard's EventAccumulator reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    scalars = {
        tag: [(point.step, point.value) for point in accumulator.Scalars(tag)]
        for tag in tags["scalars"]
    }
    texts = {tag: accumulator.Tensors(tag)[0].tensor_proto.string_val[0] for tag in tags["tensors"]}
    return scalars, texts


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def served(folder, expected):
    """Scalars from the HTTP interface of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", str(port)]
    # Without a bound of its own the server keeps a sample of long series.
    command += ["--samples_per_plugin", "scalars=1000000", "--load_fast=false"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    base = f"http://127.0.0.1:{port}/data/plugin"
    try:
        deadline = time.monotonic() + SERVER_SECONDS
        tags = {}
        while len(tags) < len(expected):
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the server does not know all tags: {len(tags)} of {len(expected)}")
            time.sleep(0.5)
            try:
                tags = json.loads(get(f"{base}/scalars/tags")).get(".", {})
            except OSError:
                pass
        found = {}
        for tag in tags:
            query = urllib.parse.urlencode({"run": ".", "tag": tag, "format": "csv"})
            rows = list(csv.reader(io.StringIO(get(f"{base}/scalars/scalars?{query}"))))[1:]
            found[tag] = [(int(step), float(value)) for _, step, value in rows]
        query = urllib.parse.urlencode({"run": ".", "tag": "recipe"})
        text = json.loads(get(f"{base}/text/text?{query}"))[0]["text"]
        return found, text
    finally:
        server.terminate()
        server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", help="run folder")
    arguments = parser.parse_args()
    folder = os.path.join(arguments.run, "tensorboard")
    expected = events.scalars(events.read(arguments.run))
    if not expected:
        sys.exit(f"{arguments.run} has no scalars")
    found, texts = accumulated(folder)
    compare("EventAccumulator", expected, found)
    with open(os.path.join(arguments.run, "recipe.toml"), encoding="utf-8") as file:
        recipe = file.read()
    if texts["recipe"].decode() != f"```toml\n{recipe}```\n" or b"| workers |" not in texts["layout"]:
        sys.exit("the texts are not the recipe and the layout")
    found, page = served(folder, expected)
    compare("HTTP", expected, found)
    first_key = re.search(r"^\w+ = ", recipe, re.MULTILINE)[0]
    if first_key not in page:
        sys.exit(f"the page of the recipe has no {first_key!r}")
    print("texts: recipe and layout are there")


if __name__ == "__main__":
    main()
