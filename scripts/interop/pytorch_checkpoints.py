#!/usr/bin/env python3
"""Continues training of PyTorch programs with lockstep: the losses must go on as PyTorch's own do.

    python scripts/interop/pytorch_checkpoints.py --lockstep target/release/lockstep
    python scripts/interop/pytorch_checkpoints.py --golden     writes the folders of the tests

PyTorch trains a small Llama of `transformers` with AdamW for ten steps and saves it, in turn by
`torch.distributed.checkpoint` (DCP), from one process and from two ranks of FSDP2, whose tensors are
sharded DTensors, and by DeepSpeed with ZeRO-2 and 3 on two ranks, where DeepSpeed is installed. Then
PyTorch and lockstep each take ten more steps, lockstep from the folder of FSDP2 also with sharded
layers, with pipeline stages and with ZeRO-3. Every window of the corpus is equal, so that both see
the same batches in any order.

Needs Python 3.10. Torch, transformers and DeepSpeed are taken from --python PATH or
LOCKSTEP_INTEROP_PYTHON; otherwise pip installs all but DeepSpeed into target/interop.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import interpreter

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "crates" / "harness" / "golden" / "pytorch"
CONTEXT, BATCH, BEFORE, AFTER = 16, 8, 10, 10
LR, BETAS, EPS, DECAY = 1e-3, (0.9, 0.95), 1e-8, 0.1
# Two classes of 24-bit sums in another order, over twenty updates.
LIMIT = 1e-5
PATTERN = b"Speak, friend, a"
# Rows that two ranks hold unequal parts of, and layers and heads to divide.
SHARDED = dict(hidden_size=10, intermediate_size=14, num_hidden_layers=2, num_key_value_heads=2,
               head_dim=6)
LAYOUTS = {
    "one worker": [],
    "TP2": ["run.workers=2", "parallel.tensor=2"],
    "PP2": ["run.workers=2", "parallel.pipeline=2"],
    "DP2 ZeRO-3": ["run.workers=2", "parallel.zero=3"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lockstep", type=pathlib.Path, help="the program to try")
    parser.add_argument("--golden", action="store_true", help="write the golden folders instead")
    parser.add_argument("--python",
                        help="an interpreter that has torch and transformers, perhaps DeepSpeed")
    parser.add_argument("--deepspeed-rank", help=argparse.SUPPRESS)
    parser.add_argument("--fsdp-rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    is_rank = arguments.deepspeed_rank is not None or arguments.fsdp_rank is not None
    if not (is_rank or arguments.golden or arguments.lockstep):
        parser.error("name the program with --lockstep, or ask for --golden")
    interpreter.use(arguments.python)
    if arguments.fsdp_rank is not None:
        return train_by_fsdp(pathlib.Path(arguments.fsdp_rank))
    if is_rank:
        return train_by_deepspeed(pathlib.Path(arguments.deepspeed_rank))
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        folders = {"dcp": save_by_dcp(scratch / "dcp")}
        try:
            import deepspeed
            print(f"deepspeed {deepspeed.__version__}")
            for stage in (2, 3):
                name = f"deepspeed-zero-{stage}"
                folders[name] = save_by_deepspeed(scratch / name, stage)
        except ImportError:
            print("deepspeed is not installed: its folder is not tried")
        losses = continue_by_torch()
        if arguments.golden:
            return write_golden(folders, losses)
        for name, folder in folders.items():
            ours = continue_by_lockstep(arguments.lockstep.resolve(), folder, scratch / f"run-{name}")
            worst = max(abs(a - b) / b for a, b in zip(ours, losses, strict=True))
            print(f"{name:16} losses of steps {BEFORE + 1} to {BEFORE + AFTER}: "
                  f"{ours[0]:.6f} to {ours[-1]:.6f}, at most {worst:.1e} from PyTorch's")
            if worst > LIMIT:
                sys.exit(f"{name}: {worst:.1e} is more than {LIMIT:.0e}")
        check_fsdp(arguments.lockstep.resolve(), scratch)
        theirs = continue_lockstep_by_torch(arguments.lockstep.resolve(), scratch)
        worst = max(abs(a - b) / b for a, b in zip(theirs, losses, strict=True))
        print(f"{'back':16} losses of steps {BEFORE + 1} to {BEFORE + AFTER}, by PyTorch from a run of "
              f"lockstep: at most {worst:.1e} from PyTorch's alone")
        if worst > LIMIT:
            sys.exit(f"back: {worst:.1e} is more than {LIMIT:.0e}")


def check_fsdp(program, scratch):
    folder = launch_ranks("--fsdp-rank", scratch / "fsdp")
    model, batch = model_and_batch(**SHARDED)
    losses = train(model, adamw(model), batch, BEFORE + AFTER)[BEFORE:]
    for number, (name, layout) in enumerate(LAYOUTS.items()):
        ours = continue_by_lockstep(program, folder, scratch / f"run-fsdp-{number}", layout)
        worst = max(abs(a - b) / b for a, b in zip(ours, losses, strict=True))
        print(f"{'fsdp2 on 2 ranks':16} to {name}: at most {worst:.1e} from PyTorch's")
        if worst > LIMIT:
            sys.exit(f"fsdp2, {name}: {worst:.1e} is more than {LIMIT:.0e}")


def model_and_batch(**options):
    import torch
    import transformers
    torch.manual_seed(20261118)
    torch.set_num_threads(1)
    shape = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_key_value_heads=1)
    config = transformers.LlamaConfig(
        vocab_size=256, max_position_embeddings=CONTEXT, num_attention_heads=2,
        tie_word_embeddings=True, **(shape | options))
    model = transformers.LlamaForCausalLM(config)
    text = torch.tensor(list(PATTERN) + [PATTERN[0]])
    batch = text[:-1].repeat(BATCH, 1), text[1:].repeat(BATCH, 1)
    return model, batch


def adamw(model):
    import torch
    # As lockstep does, norms and other vectors do not decay.
    decayed = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)


def loss_of(model, batch):
    import torch
    logits = model(batch[0]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[1].flatten())


def train(model, optimizer, batch, steps):
    losses = []
    for _ in range(steps):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def continue_by_torch():
    model, batch = model_and_batch()
    return train(model, adamw(model), batch, BEFORE + AFTER)[BEFORE:]


def save_by_dcp(folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, batch = model_and_batch()
    optimizer = adamw(model)
    train(model, optimizer, batch, BEFORE)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"app": {"model": weights, "optim": state}}, checkpoint_id=folder)
    model.config.save_pretrained(folder)
    return folder


def save_by_deepspeed(folder, stage):
    return launch_ranks("--deepspeed-rank", folder, STAGE=str(stage))


def launch_ranks(flag, folder, **variables):
    """Runs this script as two ranks of torchrun."""
    programs = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    # Next to each other on one machine, whatever its name resolves to.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               "2", __file__, flag, str(folder)]
    environment = os.environ | variables | {"PATH": programs}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{flag} failed:\n{done.stderr[-3000:]}")
    return folder


def train_by_fsdp(folder):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    model, batch = model_and_batch(**SHARDED)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = adamw(model)
    half = BATCH // 2
    own = slice(dist.get_rank() * half, (dist.get_rank() + 1) * half)
    train(model, optimizer, (batch[0][own], batch[1][own]), BEFORE)
    weights, state = get_state_dict(model, optimizer)
    assert all(isinstance(weight, DTensor) for weight in weights.values()), "nothing is sharded"
    dcp.save({"app": {"model": weights, "optim": state}}, checkpoint_id=folder)
    if dist.get_rank() == 0:
        model.config.save_pretrained(folder)
    dist.destroy_process_group()


def train_by_deepspeed(folder):
    import deepspeed
    model, batch = model_and_batch()
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model), config={
        "train_batch_size": BATCH, "gradient_clipping": 0.0, "zero_optimization": {"stage": int(os.environ["STAGE"])},
        "zero_allow_untested_optimizer": True})
    half = BATCH // 2
    own = slice(engine.local_rank * half, (engine.local_rank + 1) * half)
    for _ in range(BEFORE):
        loss = loss_of(engine, (batch[0][own], batch[1][own]))
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(str(folder))
    if engine.local_rank == 0:
        model.config.save_pretrained(folder)


def settings(folder):
    corpus = folder.parent / "corpus.txt"
    corpus.write_bytes(PATTERN * 400)
    return {
        "data.source": corpus, "data.validation": 0.05, "data.order": "sequential", "model.context": CONTEXT,
        "train.batch": BATCH, "train.microbatch": 1, "train.steps": BEFORE + AFTER,
        "train.eval_every": 0, "optim.name": "adamw", "optim.lr": LR, "optim.beta1": BETAS[0],
        "optim.beta2": BETAS[1], "optim.eps": EPS, "optim.weight_decay": DECAY, "optim.clip": 0,
        "optim.schedule": "constant", "optim.warmup_steps": 0, "run.device": "cpu",
    }


def continue_by_lockstep(program, folder, run, layout=()):
    command = [program, "train", "--quiet", "--resume", folder, "--set", f"run.dir={run}"]
    command += [part for setting in layout for part in ("--set", setting)]
    for key, value in settings(folder).items():
        command += ["--set", f"{key}={value}"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"lockstep failed:\n{done.stderr}")
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event.get("event") == "step"]


def continue_lockstep_by_torch(program, scratch):
    """Ten steps of lockstep, ten more of PyTorch."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    model, batch = model_and_batch()
    start, run, folder = scratch / "start", scratch / "run-back", scratch / "back"
    model.save_pretrained(start)
    command = [program, "train", start, "--quiet", "--stop-after", BEFORE, "--set", f"run.dir={run}"]
    for key, value in settings(start).items():
        command += ["--set", f"{key}={value}"]
    for command in (command, [program, "convert", run, "--to", "dcp", folder, "--quiet"]):
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"lockstep failed:\n{done.stderr}")
    # Other weights, so that all of them must be loaded.
    for parameter in model.parameters():
        parameter.data.zero_()
    optimizer = adamw(model)
    weights, state = get_state_dict(model, optimizer)
    # The settings of the optimizer stay those of this program.
    planner = dcp.DefaultLoadPlanner(allow_partial_load=True)
    dcp.load({"model": weights, "optim": state}, checkpoint_id=folder, planner=planner)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return train(model, optimizer, batch, AFTER)


def write_golden(folders, losses):
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for name, folder in folders.items():
        skipped = shutil.ignore_patterns("*.py", "generation_config.json")
        shutil.copytree(folder, GOLDEN / name, ignore=skipped)
    (GOLDEN / "losses.json").write_text(json.dumps(losses) + "\n")
    size = sum(path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file())
    print(f"{GOLDEN}: {size} bytes")


if __name__ == "__main__":
    main()
