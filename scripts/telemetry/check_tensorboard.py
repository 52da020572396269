#!/usr/bin/env python3
"""Opens runs with TensorBoard and compares every scalar and histogram with a run's event file, and
decodes the timelines.

    python3 scripts/telemetry/check_tensorboard.py --lockstep target/release/lockstep

trains the runs of `runs.py`. One folder of a run with telemetry.tensorboard is checked by

    python3 scripts/telemetry/check_tensorboard.py runs/0001

The files are read twice: by EventAccumulator, and over HTTP from a TensorBoard server that this
script starts on a free port of this host. Values are 32-bit floats in TensorBoard.
"""

import csv
import io
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import events
import runs

SERVER_SECONDS = 120
HISTOGRAMS = ("replicas", "pipeline")


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


def histogram_row(point):
    """Step, min, max, number, sum, sum of squares, limits and counts of a histogram."""
    it = point.histogram_value
    numbers = (it.min, it.max, it.num, it.sum, it.sum_squares)
    return (point.step, *numbers, list(it.bucket_limit), list(it.bucket))


def accumulated(folder):
    """Scalars and texts as TensorBoard's EventAccumulator reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(folder, size_guidance=dict.fromkeys(("scalars", "tensors", "histograms", "images"), 0))
    accumulator.Reload()
    tags = accumulator.Tags()
    scalars = {
        tag: [(point.step, point.value) for point in accumulator.Scalars(tag)]
        for tag in tags["scalars"]
    }
    histograms = {
        tag: [histogram_row(point) for point in accumulator.Histograms(tag)]
        for tag in tags["histograms"]
    }
    images = [image for tag in tags["images"] for image in accumulator.Images(tag)]
    texts = {tag: accumulator.Tensors(tag)[0].tensor_proto.string_val[0] for tag in tags["tensors"]}
    return scalars, histograms, images, texts


def expected_histograms(recorded):
    """Rows of every histogram of the event file, by tag."""
    found = {}
    for event in recorded:
        if event["event"] == "histogram":
            values = event["values"]
            numbers = [values[name] for name in ("min", "max", "num", "sum", "sum_squares")]
            row = (event["step"], *numbers, values["limits"], values["counts"])
            found.setdefault(f"{event['of']}/{event['tensor']}", []).append(row)
    return found


def compare_histograms(expected, found):
    """Ends the script unless all histograms are there, with their values."""
    if found != expected:
        differs = [tag for tag in {*found, *expected} if found.get(tag) != expected.get(tag)]
        sys.exit(f"histograms differ: {sorted(differs)}")
    number = sum(len(points) for points in expected.values())
    print(f"EventAccumulator: {len(expected)} tags, {number} histograms, all equal")


def check_images(steps, images):
    """Ends the script unless there is a picture with bars for each of the steps."""
    import PIL.Image

    if [image.step for image in images] != steps:
        sys.exit(f"timelines of steps {[image.step for image in images]}, not of {steps}")
    for image in images:
        picture = PIL.Image.open(io.BytesIO(image.encoded_image_string))
        picture.load()
        if picture.size != (image.width, image.height) or len(picture.convert("RGB").getcolors()) < 4:
            sys.exit(f"the timeline of step {image.step} is empty or has another size")
    print(f"EventAccumulator: {len(images)} timelines decode")


def get_bytes(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read()


def get(url):
    return get_bytes(url).decode()


def served_histograms_and_images(base, images):
    """Numbers of points of all histograms, and whether the served pictures are those of the file."""
    points = {}
    for tag in json.loads(get(f"{base}/histograms/tags")).get(".", {}):
        query = urllib.parse.urlencode({"run": ".", "tag": tag})
        points[tag] = len(json.loads(get(f"{base}/histograms/histograms?{query}")))
    served = []
    if images:
        query = urllib.parse.urlencode({"run": ".", "tag": "timeline", "sample": 0})
        for entry in json.loads(get(f"{base}/images/images?{query}")):
            served.append(get_bytes(f"{base}/images/individualImage?{entry['query']}"))
    return points, served == [image.encoded_image_string for image in images]


def served(folder, expected, images):
    """Scalars, a text, and what else there is from the HTTP interface of a server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", str(port)]
    # Without a bound of its own the server keeps a sample of long series.
    command += ["--load_fast=false"]
    command += ["--samples_per_plugin", "scalars=1000000,histograms=1000000,images=1000000"]
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
        return found, text, served_histograms_and_images(base, images)
    finally:
        server.terminate()
        server.wait()


def check(run):
    """Ends the script unless TensorBoard has everything of a run folder."""
    folder = os.path.join(run, "tensorboard")
    recorded = events.read(run)
    expected = events.scalars(recorded)
    if not expected:
        sys.exit(f"{run} has no scalars")
    found, histograms, images, texts = accumulated(folder)
    compare("EventAccumulator", expected, found)
    distributions = expected_histograms(recorded)
    compare_histograms(distributions, histograms)
    check_images([event["step"] for event in recorded if event["event"] == "task_spans"], images)
    with open(os.path.join(run, "recipe.toml"), encoding="utf-8") as file:
        recipe = file.read()
    if texts["recipe"].decode() != f"```toml\n{recipe}```\n" or b"| workers |" not in texts["layout"]:
        sys.exit("the texts are not the recipe and the layout")
    found, page, (points, has_images) = served(folder, expected, images)
    compare("HTTP", expected, found)
    if points != {tag: len(rows) for tag, rows in distributions.items()} or not has_images:
        sys.exit("the server has other histograms or timelines")
    print(f"HTTP: {len(points)} tags of histograms, {len(images)} timelines, all there")
    first_key = re.search(r"^\w+ = ", recipe, re.MULTILINE)[0]
    if first_key not in page:
        sys.exit(f"the page of the recipe has no {first_key!r}")
    print("texts: recipe and layout are there")


def main():
    parser = runs.parser(__doc__)
    parser.add_argument("run", nargs="?", help="run folder, in place of runs of --lockstep")
    arguments = parser.parse_args()
    runs.use(arguments)
    if arguments.run:
        check(arguments.run)
        return
    if not arguments.lockstep:
        parser.error("a run folder or --lockstep")
    sets = ("telemetry.tensorboard=true",)
    for name in runs.RUNS:
        histograms = ("telemetry.histograms_every=20",) if name in HISTOGRAMS else ()
        print(f"{name}:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            check(runs.train(arguments.lockstep, folder, name, (*sets, *histograms)))


if __name__ == "__main__":
    main()
