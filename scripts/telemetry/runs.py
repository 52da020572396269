"""Short runs of which the scripts of this folder compare what they export."""

import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interop"))

import interpreter

TEMPLATE = """{% for m in messages %}{{ m.role[0] }}:{{ m.content }}
{% endfor %}{% if add_generation_prompt %}a:{% endif %}"""
TWO_REPLICAS = ("run.workers=2", "train.batch=16", "train.microbatch=2")

# Together they have every number of a step, and labels of every kind but those of tasks.
RUNS = {
    "replicas": TWO_REPLICAS,
    "pipeline": ("run.workers=2", "parallel.pipeline=2", "model.layers=2", "checkpoint.every=40"),
    "servers": ("run.workers=2", "sync.mode=parameter-server", "optim.name=sgd"),
    "local-sgd": ("run.workers=2", "sync.mode=local-sgd"),
    "compression": (*TWO_REPLICAS, "compress.method=top-k", "compress.ratio=0.1"),
    "fp16": (*TWO_REPLICAS, "precision.compute=fp16"),
    "length-warm-up": (*TWO_REPLICAS, "train.seqlen_warmup_steps=30"),
    "preferences": (
        *TWO_REPLICAS,
        "data.source=pairs.jsonl",
        "finetune.chat_template=chat.jinja",
        "data.format=chat",
        "data.validation=0.2",
        "finetune.method=dpo",
    ),
}
COMMON = ("train.steps=70", "train.eval_every=20", "train.eval_batches=1")


def parser(description):
    """Arguments that all scripts have."""
    import argparse

    found = argparse.ArgumentParser(description=description.split("\n")[0])
    found.add_argument("--lockstep", help="program that trains the runs")
    found.add_argument("--python", help="interpreter with the packages of requirements.txt")
    return found


def use(arguments):
    """Continues in an interpreter with the packages."""
    interpreter.use(arguments.python)


def write_pairs(folder):
    """Pairs of answers for preference optimization."""
    with open(os.path.join(folder, "pairs.jsonl"), "w", encoding="utf-8") as file:
        for n in range(40):
            prompt, chosen, rejected = "why " * (1 + n % 3), "so " * (1 + n % 4), "no " * (1 + n % 5)
            pair = {"prompt": f"{prompt}{n}", "chosen": chosen, "rejected": rejected}
            file.write(json.dumps(pair) + "\n")
    with open(os.path.join(folder, "chat.jinja"), "w", encoding="utf-8") as file:
        file.write(TEMPLATE)


def command(lockstep, folder, name, sets):
    """Arguments of a run in a folder, which it takes as its current one."""
    write_pairs(folder)
    found = [os.path.abspath(lockstep), "train", "--preset", "tiny", "--quiet"]
    for setting in (*COMMON, *RUNS[name], *sets, f"run.dir={name}"):
        found += ["--set", setting]
    return found


def train(lockstep, folder, name, sets):
    """Trains, and returns the run folder."""
    done = subprocess.run(command(lockstep, folder, name, sets), cwd=folder, capture_output=True,
                          text=True)
    if done.returncode != 0:
        sys.exit(f"{name}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return os.path.join(folder, name)
