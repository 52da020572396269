"""Scalars of a run's event file, by tag and step, as the exporters name them.

Written from the documentation of the events and independent of the engine's list, so that a number
that an exporter forgets is missed here.
"""

import json
import os

STEP = {
    "loss": "train/loss",
    "lr": "train/learning_rate",
    "grad_norm": "train/grad_norm",
    "tokens_per_second": "train/tokens_per_second",
    "loss_scale": "train/loss_scale",
    "zeroed_fraction": "train/zeroed_fraction",
    "preference_accuracy": "train/preference_accuracy",
    "preference_margin": "train/preference_margin",
    "seqlen": "train/sequence_length",
    "step_seconds": "step/seconds",
    "data_wait_seconds": "step/data_wait_seconds",
    "exposed_communication_seconds": "step/exposed_communication_seconds",
    "straggler_wait_seconds": "step/straggler_wait_seconds",
    "is_skipped": "train/skipped",
}
RESOURCES = {
    "data_bytes": "bytes/data",
    "pipeline_bytes": "bytes/pipeline",
    "tensor_bytes": "bytes/tensor",
    "strategy_bytes": "bytes/strategy",
    "resident_bytes": "memory/resident_bytes",
    "model_flops_per_second": "step/model_flops_per_second",
    "mfu": "step/mfu",
}
RANK_COUNTERS = (
    "restarts",
    "missed_steps",
    "data_bytes",
    "pipeline_bytes",
    "tensor_bytes",
    "strategy_bytes",
    "exposed_communication_seconds",
    "straggler_wait_seconds",
    "resident_bytes",
    "device_bytes",
    "busy_share",
    "clock_hertz",
    "throttle_count",
)
DRIFT = {
    "drift": "sync/drift",
    "drift_max": "sync/drift_max",
    "update_norm_squared": "sync/update_norm_squared",
}
FIELDS = {
    "step": STEP,
    "resources": RESOURCES,
    "evaluated": {
        "validation_loss": "validation/loss",
        "perplexity": "validation/perplexity",
        "wire_bytes": "validation/wire_bytes",
    },
    "checkpoint_saved": {
        "bytes": "checkpoint/bytes",
        "stall_seconds": "checkpoint/stall_seconds",
        "write_seconds": "checkpoint/write_seconds",
    },
    "assessed": {
        "accuracy": "problem/accuracy",
        "suboptimality": "problem/suboptimality",
        "distance": "problem/distance",
    },
    "gradient_noise": {
        "small_norm_squared": "noise/small_norm_squared",
        "large_norm_squared": "noise/large_norm_squared",
    },
    "round_finished": DRIFT,
    "aggregated": {**DRIFT, "epsilon": "sync/epsilon"},
    "consensus": {"distance": "sync/consensus_distance"},
    "compressed": {
        "delta": "compression/delta",
        "residual_norm": "compression/residual_norm",
        "message_bytes": "compression/message_bytes",
    },
    "server_requests": {
        name: f"server/{name}"
        for name in (
            "pull_p50_seconds",
            "pull_p99_seconds",
            "push_p50_seconds",
            "push_p99_seconds",
        )
    },
}


def read(run):
    """Events of a run folder."""
    with open(os.path.join(run, "events.jsonl"), encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def number(value):
    """A number of the file; non-finite ones are strings there."""
    return float({"Infinity": "inf", "-Infinity": "-inf"}.get(value, value))


def scalars(events):
    """Pairs of step and value by tag, in the order of the file."""
    found = {}
    for event in events:
        for tag, value in scalars_of(event):
            found.setdefault(tag, []).append((event["step"], value))
    return found


def scalars_of(event):
    """Tags and values of an event."""
    kind = event["event"]
    for field, tag in FIELDS.get(kind, {}).items():
        if event.get(field) is not None:
            yield tag, number(event[field])
    if kind == "gradient_noise":
        small, large = (number(event[f"{size}_norm_squared"]) for size in ("small", "large"))
        batches = [number(event[f"{size}_batch"]) for size in ("small", "large")]
        variance = (small - large) / (1 / batches[0] - 1 / batches[1])
        yield "noise/gradient_variance", variance
        yield "noise/true_norm_squared", large - variance / batches[1]
    elif kind == "workers_missing":
        yield "sync/missing_workers", float(len(event["missing"]))
    elif kind == "rank_counters":
        for name in RANK_COUNTERS:
            if event.get(name) is not None:
                yield f"ranks/{name}/{event['worker']}", number(event[name])
        for part, held in (event.get("memory") or {}).items():
            yield f"ranks/{part}_bytes/{event['worker']}", number(held)
    elif kind == "algorithm_bytes":
        for sent in event["bytes"]:
            yield f"bytes/algorithm/{sent['axis']}/{sent['algorithm']}", number(sent["bytes"])
    elif kind == "server_pushes":
        for name in ("applied", "discarded", "skipped"):
            for worker, counts in enumerate(zip(*event[f"{name}_by_server"])):
                yield f"server/{name}_pushes/{worker}", number(sum(counts))
    elif kind == "staleness":
        for name in ("mean", "max"):
            yield f"sync/staleness_{name}/{event['worker']}", number(event[name])
    elif kind == "task_evaluated":
        for score, value in event["scores"].items():
            yield f"tasks/score/{event['task']}/{score}", number(value)
        if event.get("log_likelihood") is not None:
            yield f"tasks/log_likelihood/{event['task']}", number(event["log_likelihood"])
