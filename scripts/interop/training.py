"""Twenty steps of AdamW from one folder by `transformers` and by lockstep: the losses must be equal up
to rounding, and those of lockstep to the bit on every layout.

Every window of the corpus is equal, so that both see the same batches in any order. Other text would
need the order of the samples; the windows of a model with 260 tokens still reach every weight but
the embeddings of tokens that are not in them, which have no gradient in either.
"""

import json

PATTERN = b"Speak, friend, a"
CONTEXT, BATCH, STEPS = len(PATTERN), 4, 20
LR, BETAS, EPS, DECAY, CLIP = 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
# Of a loss, over twenty updates: two classes of 24-bit sums in another order.
LIMIT = 1e-5
FAMILIES = ["gpt2", "llama3", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "olmo2", "gpt-neox",
            "bloom"]
LAYOUTS = {
    "ZeRO-1 on 2 ranks": ["run.workers=2", "parallel.zero=1"],
    "ZeRO-3 on 3 ranks": ["run.workers=3", "parallel.zero=3"],
    "2 pipeline stages": ["run.workers=2", "parallel.pipeline=2"],
}


def check(case, cases, call, lockstep, scratch):
    """Returns the largest relative difference of a loss, and the losses."""
    source, corpus = scratch / "source", scratch / "corpus.txt"
    cases.write(case, source)
    corpus.write_bytes(PATTERN * 400)
    theirs = train_by_torch(cases.load(source)[0])
    ours = train_by_lockstep(call, lockstep, source, corpus, scratch / "run", [])
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        run = scratch / f"run-{number}"
        found = train_by_lockstep(call, lockstep, source, corpus, run, layout)
        assert found == ours, f"{case.name}: {name} has other losses"
    worst = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    assert worst <= LIMIT, f"{case.name}: losses differ by {worst}: {ours} and {theirs}"
    return worst, ours


def train_by_torch(model):
    import torch
    text = torch.tensor(list(PATTERN) + [PATTERN[0]])
    inputs, targets = text[:-1].repeat(BATCH, 1), text[1:].repeat(BATCH, 1)
    # As lockstep does, norms and other vectors do not decay.
    decayed = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses = []
    for _ in range(STEPS):
        # The model is in evaluation mode: it has no dropout.
        logits = model(inputs, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
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
