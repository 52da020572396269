"""Twenty steps of AdamW from one folder by `transformers` and by lockstep: losses and final weights
must be equal up to rounding, and those of lockstep to the bit on every layout.

The text is read in order, so every batch is other text, and both programs see the same windows.
"""

import json
import math
import pathlib
import random
import re

CONTEXT, BATCH, STEPS = 16, 4, 20
# Gradients that are zero but for rounding, as those of the biases of keys, stay far below `EPS`;
# AdamW would make steps of full size of their noise otherwise.
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-4, 0.1, 1.0
ROOT = pathlib.Path(__file__).resolve().parents[2]
WORDS = ("river Stone light, water paper green; small quiet north glass iron. seven cold bread\n"
         "smoke wheel (sand) it's 42 «été» red blue 日本").split(" ")


def text():
    """Different in every window."""
    draw = random.Random(20261119)
    return " ".join(draw.choice(WORDS) for _ in range(600)).encode()


TEXT = text()


def close(length):
    """Bound of the harness for two float32 results of sums of this many terms, as a share of the
    largest element: the table of crates/harness/src/tolerance.rs."""
    table = (ROOT / "crates" / "harness" / "src" / "tolerance.rs").read_text()
    (depth,) = re.search(r"\(Dtype::F32, F32_UNIT_ROUNDOFF, ([0-9.]+)\)", table).groups()
    return float(depth) * 2.0**-24 * math.sqrt(length)


FAMILIES = ["gpt2", "llama3", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "olmo2", "gpt-neox",
            "bloom"]
LAYOUTS = {
    "ZeRO-1 on 2 ranks": ["run.workers=2", "parallel.zero=1"],
    "ZeRO-3 on 3 ranks": ["run.workers=3", "parallel.zero=3"],
    "2 pipeline stages": ["run.workers=2", "parallel.pipeline=2"],
}


def check(case, cases, call, lockstep, scratch):
    """Returns the largest relative differences of a loss and of a tensor, and the losses."""
    source, corpus = scratch / "source", scratch / "corpus.txt"
    cases.write(case, source)
    corpus.write_bytes(TEXT)
    model = cases.load(source)[0]
    theirs = train_by_torch(model)
    ours = train_by_lockstep(call, lockstep, source, corpus, scratch / "run", [])
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        run = scratch / f"run-{number}"
        found = train_by_lockstep(call, lockstep, source, corpus, run, layout)
        assert found == ours, f"{case.name}: {name} has other losses"
    limit = close(cases.VOCAB)
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    assert worst <= limit, f"{case.name}: losses differ by {worst}: {ours} and {theirs}"
    call(lockstep, "convert", scratch / "run", "--to", "huggingface", scratch / "export")
    found = dict(cases.load(scratch / "export")[0].named_parameters())
    expected = dict(model.named_parameters())
    assert found.keys() == expected.keys(), f"{case.name}: other names"
    apart = {name: ((found[name] - weight).abs().max() / weight.abs().max()).item()
             for name, weight in expected.items()}
    name = max(apart, key=apart.get)
    assert apart[name] <= limit, f"{case.name}: {name} differs by {apart[name]}"
    return worst, apart[name], ours


def train_by_torch(model):
    import torch
    # Windows in the order of the text; the last token of each is predicted and begins the next.
    rows = torch.tensor(list(TEXT[:CONTEXT * BATCH * STEPS + 1]))
    inputs = rows[:-1].view(STEPS, BATCH, CONTEXT)
    targets = rows[1:].view(STEPS, BATCH, CONTEXT)
    # As lockstep does, norms and other vectors do not decay.
    decayed = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for step in range(STEPS):
        # The model is in evaluation mode: it has no dropout.
        logits = model(inputs[step], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets[step].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_by_lockstep(call, lockstep, source, corpus, run, layout):
    settings = {
        "data.source": corpus, "data.validation": 0.05, "data.order": "sequential",
        "data.tokenizer": "byte", "model.context": CONTEXT, "model.dropout": 0,
        "train.batch": BATCH, "train.microbatch": 1, "train.steps": STEPS, "train.eval_every": 0,
        "train.eval_batches": 1, "numerics.invariant_up_to": 4, "optim.name": "adamw",
        "optim.lr": LR, "optim.beta1": BETAS[0], "optim.beta2": BETAS[1], "optim.eps": EPS,
        "optim.weight_decay": DECAY, "optim.clip": CLIP, "optim.schedule": "constant",
        "optim.warmup_steps": 0, "run.device": "cpu", "run.isolation": "threads", "run.dir": run,
    }
    sets = [f"{key}={value}" for key, value in settings.items()] + layout
    call(lockstep, "train", source, "--quiet", *(part for one in sets for part in ("--set", one)))
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event.get("event") == "step"]
