#!/usr/bin/env python3
"""Predicted beside measured, over many recipes: memory and bytes, or time.

    scripts/planner/errors.py --binary target/release/lockstep            # memory and bytes
    scripts/planner/errors.py --binary target/release/lockstep --models 1M,10M
    scripts/planner/errors.py --binary target/release/lockstep --cut      # stages and slices
    scripts/planner/errors.py --binary target/release/lockstep --offload  # state on a disk
    scripts/planner/errors.py --binary target/release/lockstep --time     # calibrates first
    scripts/planner/errors.py --binary target/release/lockstep --strategies   # all three, likewise

Memory: trains every model in every layout for a step or more with `lockstep train --json` and
prints, of the rank that is off by most, what was predicted before the run, what was measured and
the error in percent. A recipe that does not fit into the machine is refused by `train` itself, and
the line says so. One that fits, but not beside what else runs right now, is left out.

Time: several rounds of measuring the machine (`lockstep plan calibrate`) and running seven recipes,
because a machine that others share is not as fast now as a minute ago; the error of a recipe is the
median of its rounds. Let nothing else run meanwhile.

The last lines have the median and the worst error.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

# Steps of large models are made short: eight sequences of 64 tokens.
SHORT = ["model.context=64", "train.batch=8", "train.microbatch=1"]

# Name, settings: about 1, 10, 50 and 200 million parameters.
MODELS = [
    ("1M", ["model.width=128", "model.heads=4", "model.kv_heads=4", "model.ffn=384", "model.layers=4"]),
    ("10M", ["model.width=384", "model.heads=6", "model.kv_heads=6", "model.ffn=1024", "model.layers=6"]),
    ("50M", ["model.width=768", "model.heads=12", "model.kv_heads=12", "model.ffn=2048", "model.layers=7", *SHORT]),
    ("200M", ["model.width=1024", "model.heads=16", "model.kv_heads=16", "model.ffn=4096", "model.layers=12", *SHORT]),
]

# Workers x ZeRO stage, each pair once; recompute goes round, so that every stage and every number of
# workers meets each kind.
WORKERS = [1, 2, 3, 4, 8]
RECOMPUTE = ["none", "selective", "full"]
LAYOUTS = [
    (workers, zero, RECOMPUTE[(index + zero) % len(RECOMPUTE)], [])
    for index, workers in enumerate(WORKERS)
    for zero in range(4)
]

# The model cut into stages, into slices, and both; alone and with copies.
PIPELINE, TENSOR, SEQUENCE = "parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true"
CUT = [
    (2, 0, "none", [PIPELINE]),
    (2, 0, "none", [TENSOR]),
    (2, 0, "selective", [TENSOR, SEQUENCE]),
    (4, 0, "full", [PIPELINE, TENSOR]),
    (4, 1, "none", [PIPELINE]),
    (4, 3, "none", [TENSOR]),
]

# The optimizer's state on a disk, at every stage.
OFFLOAD = [(workers, zero, "none", ["offload.state=file"]) for workers, zero in [(1, 0), (2, 0), (2, 1), (4, 2), (2, 3)]]
COMMON = ["train.batch=16", "train.microbatch=2", "train.eval_batches=1", "run.save_optimizer=false",
          "checkpoint.interval=0"]

# Realistic recipes for time: name, arguments.
TIMED = [
    ("tiny", ["--preset", "tiny", "--set", "train.steps=300"]),
    ("bench", ["--set", "model.width=384", "--set", "model.heads=6", "--set", "model.kv_heads=6",
               "--set", "model.layers=6", "--set", "model.ffn=1024", "--set", "model.context=256",
               "--set", "run.workers=1", "--set", "train.steps=6"]),
    ("10M zero 1", ["--set", "model.width=384", "--set", "model.heads=6", "--set", "model.kv_heads=6",
                    "--set", "model.layers=6", "--set", "model.ffn=1024", "--set", "model.context=128",
                    "--set", "run.workers=2", "--set", "parallel.zero=1", "--set", "train.steps=10"]),
    ("llama gqa", ["--set", "model.width=256", "--set", "model.heads=8", "--set", "model.kv_heads=2",
                   "--set", "model.layers=4", "--set", "model.ffn=704", "--set", "model.context=256",
                   "--set", "run.workers=1", "--set", "train.steps=15"]),
    ("bench bf16", ["--set", "model.width=384", "--set", "model.heads=6", "--set", "model.kv_heads=6",
                    "--set", "model.layers=6", "--set", "model.ffn=1024", "--set", "model.context=256",
                    "--set", "run.workers=1", "--set", "precision.compute=bf16", "--set", "train.steps=6"]),
    ("10M bf16", ["--set", "model.width=384", "--set", "model.heads=6", "--set", "model.kv_heads=6",
                  "--set", "model.layers=6", "--set", "model.ffn=1024", "--set", "model.context=128",
                  "--set", "run.workers=2", "--set", "parallel.zero=1", "--set", "precision.compute=bf16",
                  "--set", "train.steps=10"]),
    ("tcp", ["--set", "model.width=192", "--set", "model.heads=6", "--set", "model.kv_heads=6",
             "--set", "model.layers=4", "--set", "model.ffn=512", "--set", "model.context=256",
             "--set", "run.workers=2", "--set", "run.transport=tcp", "--set", "train.steps=20"]),
]

# Every synchronization strategy, on a model of 10 million parameters: name, settings.
STEPPED = [*MODELS[1][1], "model.context=128", "train.batch=16", "train.microbatch=2", "train.steps=10",
           "run.threads=1", "run.save_optimizer=false", "checkpoint.interval=0"]
SERVERS, CLIENTS = "sync.mode=parameter-server", ["sync.mode=federated", "optim.name=sgd",
                                                  "optim.schedule=constant", "sync.local_steps=5"]
STRATEGIES = [
    ("all-reduce", []),
    *((f"zero {zero}", [f"parallel.zero={zero}"]) for zero in (1, 2, 3)),
    ("pipeline", [PIPELINE]),
    ("zero bubble", [PIPELINE, "parallel.schedule=zero-bubble"]),
    ("tensor", [TENSOR]),
    ("sequence", [TENSOR, SEQUENCE]),
    ("local sgd", ["sync.mode=local-sgd", "sync.local_steps=5"]),
    ("local sgd auto", ["sync.mode=local-sgd", "sync.local_steps=auto"]),
    ("diloco", ["sync.mode=local-sgd", "sync.local_steps=5", "sync.outer=nesterov"]),
    ("streaming diloco", ["sync.mode=local-sgd", "sync.local_steps=5", "sync.outer=nesterov",
                          "sync.fragments=2"]),
    ("gossip ring", ["sync.mode=gossip", "sync.graph=ring"]),
    ("gossip push-sum", ["sync.mode=gossip", "sync.graph=exponential"]),
    ("gossip median", ["sync.mode=gossip", "sync.graph=complete", "sync.aggregation=median"]),
    ("servers sync", [SERVERS, "sync.consistency=sync"]),
    ("2 servers sync", [SERVERS, "sync.consistency=sync", "sync.servers=2"]),
    ("servers async", [SERVERS, "sync.consistency=async"]),
    ("servers bounded", [SERVERS, "sync.consistency=bounded"]),
    ("servers elastic", [SERVERS, "sync.consistency=elastic"]),
    ("servers sparse", [SERVERS, "sync.consistency=sync", "sync.sparse_rows=true"]),
    ("servers int8", [SERVERS, "sync.consistency=sync", "compress.method=int8"]),
    ("federated", CLIENTS),
    ("scaffold", [*CLIENTS, "federated.method=scaffold"]),
    ("hogwild", ["run.workers=1", "sync.mode=hogwild", "sync.threads={workers}", "optim.name=sgd",
                 "optim.weight_decay=0"]),
    *((policy, [f"sync.stragglers={policy}"]) for policy in
      ("backup", "timeout", "drop-slowest", "exclude")),
    *((method, [f"compress.method={method}"]) for method in
      ("bf16", "fp16", "int8", "qsgd", "top-k", "random-k", "dgc", "sign", "power-sgd")),
    ("top-k in groups", ["compress.method=top-k", "compress.group_workers=2"]),
]

# What plans promise: the error in percent of the peak memory of runs that need more than this, and
# of the median step time of calibrated recipes.
LARGE_BYTES, PEAK_ERROR, STEP_ERROR = 50 << 20, 5, 15

# Left to the rest of the machine.
SPARE_BYTES = 3 << 30


def lockstep(binary, arguments):
    """The JSON of a command, or the last line of what it said when it failed."""
    finished = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        lines = finished.stderr.strip().splitlines() or ["no reason given"]
        return lines[-1]
    return json.loads(finished.stdout)


def train(binary, arguments):
    with tempfile.TemporaryDirectory() as folder:
        return lockstep(binary, ["train", "--json", "--quiet", *arguments,
                                 "--set", "train.eval_batches=1", "--set", f"run.dir={folder}/run"])


def settings(sets):
    return [argument for setting in sets for argument in ("--set", setting)]


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def error(predicted, measured):
    return None if predicted is None else 100 * (predicted / measured - 1)


def worst_rank(found):
    """The predicted and measured peak of the rank that is off by most."""
    pairs = zip(found["predicted_peak_bytes_by_rank"], found["peak_rss_bytes_by_rank"])
    return max(pairs, key=lambda pair: abs(error(*pair)))


def memory(arguments):
    print(f"{'model':>5} {'workers':>7} {'zero':>4} {'recompute':>9} {'cut':>17}   peak MiB: said, was, error"
          "     moved")
    errors = []
    wanted = arguments.models.split(",")
    layouts = CUT if arguments.cut else OFFLOAD if arguments.offload else LAYOUTS
    for name, model in (pair for pair in MODELS if pair[0] in wanted):
        for workers, zero, recompute, cut in layouts[arguments.skip:]:
            sets = settings([*COMMON, f"train.steps={arguments.steps}", "model.context=128", *model,
                             f"run.workers={workers}", f"parallel.zero={zero}",
                             f"parallel.recompute={recompute}", *cut])
            axes = " ".join(axis.split(".")[1].split("=")[0] for axis in cut)
            head = f"{name:>5} {workers:>7} {zero:>4} {recompute:>9} {axes:>17}"
            plan = lockstep(arguments.binary, ["plan", "--json", *sets])
            if isinstance(plan, str):
                print(head, " refused:", plan, flush=True)
                continue
            needed = sum(rank["total_bytes"] for rank in plan["memory_by_rank"])
            if needed > available_bytes() - SPARE_BYTES:
                print(head, f"  left out: needs {needed / 2**30:.1f} GiB, which others use now", flush=True)
                continue
            found = train(arguments.binary, sets)
            if isinstance(found, str):
                print(head, found, flush=True)
                continue
            said, was = worst_rank(found)
            errors.append(error(said, was))
            moved = (found["predicted_wire_bytes"], found["wire_bytes"])
            verdict = "exact" if moved[0] == moved[1] else f"{moved[0]} != {moved[1]}"
            print(f"{head}   {said / 2**20:9.1f} {was / 2**20:9.1f} {errors[-1]:+6.1f} %   {verdict}", flush=True)
    summary("peak", errors)


def time(arguments):
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("LOCKSTEP_CALIBRATION", f"{folder}/calibration.json")
        runs = {name: [] for name, _ in TIMED}
        for turn in range(arguments.rounds):
            print(f"round {turn + 1} of {arguments.rounds} ...", flush=True)
            found = lockstep(arguments.binary, ["plan", "calibrate", "--json"])
            if isinstance(found, str):
                raise SystemExit(found)
            for name, recipe in TIMED:
                found = train(arguments.binary, recipe)
                if isinstance(found, str):
                    raise SystemExit(f"{name}: {found}")
                runs[name].append((found["predicted_step_seconds"], found["step_seconds_median"]))
    print(f"\n{'recipe':<12} step ms: said, was (medians), error (median; least to most)")
    errors = []
    for name, pairs in runs.items():
        said, was = (statistics.median(pair[part] for pair in pairs) for part in (0, 1))
        each = sorted(error(*pair) for pair in pairs)
        errors.append(statistics.median(each))
        print(f"{name:<12} {1e3 * said:9.2f} {1e3 * was:9.2f} {errors[-1]:+6.1f} % "
              f"({each[0]:+.1f} to {each[-1]:+.1f})")
    summary("step", errors, STEP_ERROR)


def strategies(arguments):
    """Step time, peak memory and bytes of every strategy."""
    steps, peaks = [], []
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("LOCKSTEP_CALIBRATION", f"{folder}/calibration.json")
        found = lockstep(arguments.binary, ["plan", "calibrate", "--formats", "f32", "--json"])
        if isinstance(found, str):
            raise SystemExit(found)
        print(f"{'strategy':<16} step ms: said, was, error      peak MiB: said, was, error      sent")
        for name, sets in STRATEGIES:
            sets = [setting.format(workers=arguments.workers) for setting in sets]
            sets = settings([*STEPPED, f"run.workers={arguments.workers}", *sets])
            rounds = [train(arguments.binary, sets) for _ in range(arguments.rounds)]
            found = rounds[-1]
            if isinstance(found, str):
                print(f"{name:<16} {found}", flush=True)
                continue
            said = found["predicted_step_seconds"]
            if said is None:
                print(f"{name:<16} no prediction", flush=True)
                continue
            was = statistics.median(each["step_seconds_median"] for each in rounds)
            steps.append(error(said, was))
            peak = worst_rank(found)
            off = error(*peak)
            peaks += [off] if peak[1] > LARGE_BYTES else []
            moved = (found["predicted_wire_bytes"], found["wire_bytes"])
            verdict = "exact" if moved[0] == moved[1] else f"{moved[0]} != {moved[1]}"
            print(f"{name:<16} {1e3 * said:9.2f} {1e3 * was:9.2f} {steps[-1]:+6.1f} %   "
                  f"{peak[0] / 2**20:9.1f} {peak[1] / 2**20:9.1f} {off:+6.1f} %   {verdict}", flush=True)
    summary("step", steps, STEP_ERROR)
    summary(f"peak over {LARGE_BYTES >> 20} MiB", peaks)


def summary(what, errors, limit=PEAK_ERROR):
    if errors:
        sizes = [abs(each) for each in errors]
        within = sum(size <= limit for size in sizes)
        print(f"{what}: {len(sizes)} recipes, median error {statistics.median(sizes):.1f} %, worst "
              f"{max(sizes):.1f} %, within {limit} %: {within}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--binary", default="target/release/lockstep")
    parser.add_argument("--models", default=",".join(name for name, _ in MODELS))
    parser.add_argument("--skip", type=int, default=0, help="leave the first layouts out")
    parser.add_argument("--cut", action="store_true", help="stages and slices instead of copies alone")
    parser.add_argument("--offload", action="store_true", help="optimizer state on a disk")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--time", action="store_true", help="step times instead of memory")
    parser.add_argument("--strategies", action="store_true", help="every synchronization strategy")
    parser.add_argument("--workers", type=int, default=4, help="of every strategy")
    parser.add_argument("--rounds", type=int, default=5, help="runs of every timed recipe")
    arguments = parser.parse_args()
    if arguments.strategies:
        strategies(arguments)
    elif arguments.time:
        time(arguments)
    else:
        memory(arguments)


if __name__ == "__main__":
    main()
