#!/usr/bin/env python3
"""Holds lockstep against `transformers`: what one writes, the other must read, number for number.

    python scripts/interop/interop.py --lockstep target/release/lockstep
    python scripts/interop/interop.py --golden           writes crates/harness/golden/huggingface

For every case of cases.py: `transformers` writes a folder; lockstep's logits must be within 1e-4;
lockstep converts it to a run and back; the tensors must come back byte for byte, and `transformers`
must compute the very same logits from them. A model that lockstep trained for two steps is
exported, and both must agree about it again. One model of each family takes twenty steps of AdamW in
both programs, with equal losses and final weights (training.py).

For models of the Llama family, lockstep trains low-rank adapters: `peft` must load them beside the
original folder and compute lockstep's logits, and so must `transformers` from the merged export.
Adapters that `peft` wrote must have the logits of `peft` in lockstep.

Needs Python 3.10. Torch, transformers and peft are taken from --python PATH or LOCKSTEP_INTEROP_PYTHON, or
installed by pip into target/interop, as pip is configured here.
"""

import argparse
import json
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "crates" / "harness" / "golden" / "huggingface"
LIMIT = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lockstep", type=pathlib.Path, help="the program to try")
    parser.add_argument("--golden", action="store_true", help="write the golden folders instead")
    parser.add_argument("--only", action="append", help="a case; all by default")
    parser.add_argument("--python", help="an interpreter that has torch, transformers and peft")
    arguments = parser.parse_args()
    if not (arguments.golden or arguments.lockstep):
        parser.error("name the program with --lockstep, or ask for --golden")
    sys.path.insert(0, str(HERE))
    import interpreter
    interpreter.use(arguments.python)
    import cases
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, seed {cases.SEED}")
    if arguments.golden:
        write_golden(cases)
    else:
        if arguments.only:
            cases.CASES = [case for case in cases.CASES if case.name in arguments.only]
        check_all(cases, arguments.lockstep.resolve())


def write_golden(cases):
    for case in cases.CASES:
        if not case.golden:
            continue
        folder = GOLDEN / case.name
        shutil.rmtree(folder, ignore_errors=True)
        cases.write(case, folder)
        model, _ = cases.load(folder)
        # Nine digits are a float32 exactly.
        rows = [[float(f"{x:.9g}") for x in row] for row in cases.logits(model).tolist()]
        record = {"tokens": cases.TOKENS, "logits": rows}
        (folder / "logits.json").write_text(json.dumps(record) + "\n")
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(f"{case.name}: {size} bytes")


def check_all(cases, lockstep):
    worst = 0.0
    for case in cases.CASES:
        with tempfile.TemporaryDirectory() as scratch:
            difference = check(cases, case, lockstep, pathlib.Path(scratch))
        worst = max(worst, difference)
        print(f"{case.name:<16} logits within {difference:.2e}, round trip byte-equal", flush=True)
    print(f"all {len(cases.CASES)} cases agree; largest difference of logits {worst:.2e}")
    import training
    for case in [case for case in cases.CASES if case.name in training.FAMILIES]:
        with tempfile.TemporaryDirectory() as scratch:
            worst, apart, losses = training.check(
                case, cases, call, lockstep, pathlib.Path(scratch))
        print(f"{case.name:<16} {len(losses)} steps of AdamW, losses {losses[0]:.4f} to "
              f"{losses[-1]:.4f} within {worst:.1e}, weights within {apart:.1e}, equal on "
              f"{len(training.LAYOUTS) + 1} layouts", flush=True)
    adapted = [case for case in cases.CASES if takes_adapters(case)]
    for case in adapted:
        with tempfile.TemporaryDirectory() as scratch:
            difference = check_adapters(cases, case, lockstep, pathlib.Path(scratch))
        print(f"{case.name:<16} adapters within {difference:.2e} of peft, both ways", flush=True)


def takes_adapters(case):
    # Lockstep has adapters beside the separate tensors of Llama's descendants.
    has_none = case.model.startswith(("Phi3", "GPTNeoX", "Bloom"))
    return case.model.endswith("ForCausalLM") and case.dtype == "float32" and not has_none


def check_adapters(cases, case, lockstep, scratch):
    """Adapters of one case, both ways; returns the largest difference of logits."""
    import peft
    import torch
    source, run, merged = scratch / "source", scratch / "run", scratch / "merged"
    cases.write(case, source)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    short = ["train.steps=3", "run.workers=2", "run.isolation=threads", "train.eval_batches=1"]
    adapters = ["finetune.lora_rank=4", "finetune.lora_alpha=16", "finetune.lora_dropout=0.1",
                f"finetune.lora_targets={json.dumps(targets)}", "optim.lr=0.01"]
    train(lockstep, source, run, [*short, *adapters])
    ours = lockstep_logits(lockstep, run, cases.TOKENS)
    base, _ = cases.load(source)
    plain = cases.logits(base)
    theirs = cases.logits(peft.PeftModel.from_pretrained(base, run / "adapter").eval())
    assert not torch.equal(theirs, plain), f"{case.name}: the adapters change nothing"
    worst = compare(case, "adapters", ours, theirs)
    call(lockstep, "export", run, "--to", "huggingface", merged)
    worst = max(worst, compare(case, "merged", ours, cases.logits(cases.load(merged)[0])))

    written, start = scratch / "written", scratch / "start"
    torch.manual_seed(cases.SEED)
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=12, target_modules=targets)
    model = peft.get_peft_model(cases.load(source)[0], config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(written)
    # A learning rate that changes no weight: the run's logits are those of the adapter it read.
    train(lockstep, source, start, ["train.steps=1", *short[1:], "optim.lr=1e-30",
                                    f"finetune.adapter={written}"])
    ours = lockstep_logits(lockstep, start, cases.TOKENS)
    return max(worst, compare(case, "read adapters", ours, cases.logits(model.eval())))


def train(lockstep, source, run, settings):
    sets = [part for setting in [*settings, f"run.dir={run}"] for part in ("--set", setting)]
    call(lockstep, "train", source, "--quiet", *sets)


def check(cases, case, lockstep, scratch):
    """One case; returns the largest difference of logits."""
    import torch
    source, run, back = scratch / "source", scratch / "run", scratch / "back"
    cases.write(case, source)
    model, _ = cases.load(source)
    theirs = cases.logits(model)
    worst = compare(case, "import", lockstep_logits(lockstep, source, cases.TOKENS), theirs)

    dtype = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}[case.dtype]
    call(lockstep, "convert", source, "--to", "lockstep", run)
    call(lockstep, "convert", run, "--to", "huggingface", back, "--dtype", dtype,
         "--shard-size", case.shard)
    exported, info = cases.load(back)
    for kind in ["missing_keys", "unexpected_keys", "mismatched_keys"]:
        assert not info[kind], f"{case.name}: {kind} {info[kind]}"
    assert torch.equal(cases.logits(exported), theirs), f"{case.name}: the export computes others"
    for key in ["bos_token_id", "eos_token_id", "model_type", "tie_word_embeddings",
                "max_position_embeddings", "sliding_window", "head_dim",
                "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"]:
        ours, expected = (getattr(config, key, None) for config in [exported.config, model.config])
        # A file may state a head size that the library would derive.
        assert ours == expected or key == "head_dim" and expected is None, f"{case.name}: {key}"
    compare_tensors(case, source, back)

    trained, export = scratch / "trained", scratch / "export"
    call(lockstep, "train", source, "--quiet", "--set", "train.steps=2", "--set", "run.workers=2",
         "--set", "run.isolation=threads", "--set", "parallel.zero=3", "--set",
         "train.eval_batches=1", "--set", f"run.dir={trained}")
    call(lockstep, "convert", trained, "--to", "huggingface", export)
    model, _ = cases.load(export)
    after = cases.logits(model)
    assert not torch.equal(after, theirs), f"{case.name}: training changed nothing"
    ours = lockstep_logits(lockstep, trained, cases.TOKENS)
    return max(worst, compare(case, "trained", ours, after))


def compare(case, what, ours, theirs):
    import torch
    difference = (torch.tensor(ours) - theirs).abs().max().item()
    assert difference <= LIMIT, f"{case.name}, {what}: logits differ by {difference}"
    return difference


def lockstep_logits(lockstep, folder, tokens):
    text = ",".join(map(str, tokens))
    out = call(lockstep, "inspect", folder, "--logits", text, "--json")
    return json.loads(out)["logits"]


def call(lockstep, *arguments):
    done = subprocess.run([lockstep, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"lockstep {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


def compare_tensors(case, source, back):
    """Types, shapes and bytes of all tensors, under the names of the language model."""
    import transformers
    bare = not case.model.endswith(("ForCausalLM", "LMHeadModel"))
    first = f"{getattr(transformers, case.model).base_model_prefix}." if bare else ""
    expected = {first + name: held for name, held in tensors(source).items()}
    found = tensors(back)
    assert sorted(expected) == sorted(found), f"{case.name}: other names"
    for name, held in expected.items():
        assert found[name] == held, f"{case.name}: {name} did not come back byte for byte"


def tensors(folder):
    """(type, shape, bytes) of every tensor, read as the format is defined and not by a library."""
    held = {}
    for file in sorted(folder.glob("*.safetensors")):
        content = file.read_bytes()
        (length,) = struct.unpack("<Q", content[:8])
        for name, info in json.loads(content[8:8 + length]).items():
            if name != "__metadata__":
                start, end = info["data_offsets"]
                data = content[8 + length + start:8 + length + end]
                held[name] = (info["dtype"], info["shape"], data)
    return held


if __name__ == "__main__":
    main()
