#!/usr/bin/env python3
"""Holds lockstep's GGUF files against llama.cpp: both must continue a text by the same tokens.

    python scripts/interop/gguf.py --lockstep target/release/lockstep

Small models of every architecture are trained for some steps and exported, once in f32 and once in
q8_0. llama.cpp's greedy tokens of the first, and their log-probabilities, must be those of
lockstep's own logits; those of the second may leave them where two logits are closer than the
rounding.

Needs Python 3.10. xllamacpp, a package with llama.cpp inside, is taken from --python PATH or
LOCKSTEP_INTEROP_PYTHON, or installed by pip into target/interop.
"""

import argparse
import json
import math
import pathlib
import subprocess
import tempfile

import interpreter

PROMPT = list(b"And the LORD said ")
NUM_TOKENS = 24
LIMIT = 1e-4
COMMON = ["train", "--quiet", "--preset", "tiny", "--steps", "300"]
LLAMA = ["model.family=llama", "model.layers=3", "model.width=64", "model.heads=4",
         "model.kv_heads=2", "model.ffn=96", "model.context=128"]
CASES = {
    "gpt2": ["model.family=gpt2", "model.layers=2", "model.width=64", "model.heads=4",
             "model.kv_heads=4", "model.ffn=256", "model.context=128", "model.tied=true"],
    "llama": LLAMA,
    "llama tied": [*LLAMA, "model.tied=true"],
    "llama head_dim": [*LLAMA, "model.head_dim=32"],
    "llama linear": [*LLAMA, "model.rope_scaling=linear", "model.rope_factor=4"],
    "llama3": [*LLAMA, "model.rope_scaling=llama3", "model.rope_factor=8",
               "model.rope_original_context=32", "model.rope_theta=500000"],
    "qwen2": [*LLAMA, "model.qkv_bias=true"],
    "qwen3": [*LLAMA, "model.qk_norm=true", "model.head_dim=32"],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lockstep", type=pathlib.Path, required=True, help="the program to try")
    parser.add_argument("--python", help="an interpreter that has xllamacpp")
    arguments = parser.parse_args()
    interpreter.use(arguments.python)
    lockstep = arguments.lockstep.resolve()
    for name, sets in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            check(lockstep, name, sets, pathlib.Path(scratch))
    print(f"all {len(CASES)} models give the same greedy tokens")


def check(lockstep, name, sets, scratch):
    run = scratch / "run"
    settings = [word for one in [*sets, f"run.dir={run}"] for word in ("--set", one)]
    call(lockstep, *COMMON, *settings)
    tokens, expected = list(PROMPT), []
    for _ in range(NUM_TOKENS):
        text = ",".join(map(str, tokens))
        rows = json.loads(call(lockstep, "inspect", run, "--logits", text, "--json"))["logits"]
        row = rows[-1]
        best = max(range(len(row)), key=row.__getitem__)
        tokens.append(best)
        expected.append(-math.log(sum(math.exp(logit - row[best]) for logit in row)))
    ours, found = tokens[len(PROMPT):], {}
    for dtype in ("f32", "q8_0"):
        file = scratch / f"{dtype}.gguf"
        call(lockstep, "convert", run, "--to", "gguf", file, "--dtype", dtype)
        found[dtype], probabilities = greedy(file)
        if dtype == "f32":
            off = max(abs(a - b) for a, b in zip(probabilities, expected))
    assert found["f32"] == ours, f"{name}: {found['f32']} instead of {ours}"
    assert off < LIMIT, f"{name}: log-probabilities differ by {off}"
    pairs = list(zip(found["q8_0"], ours))
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), NUM_TOKENS)
    text = bytes(ours).decode(errors="replace")
    print(f"{name:<16} f32: {NUM_TOKENS} equal tokens, log-probabilities within {off:.1e}; "
          f"q8_0: the first {same}: {text!r}", flush=True)


def greedy(file):
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = 128
    params.n_parallel = 1
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    answer = server.handle_completions({
        "prompt": PROMPT, "n_predict": NUM_TOKENS, "temperature": 0.0, "ignore_eos": True,
        "logprobs": 1, "cache_prompt": False,
    })
    tokens = answer["choices"][0]["logprobs"]["content"]
    return [token["id"] for token in tokens], [token["logprob"] for token in tokens]


def call(lockstep, *arguments):
    done = subprocess.run([lockstep, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"lockstep {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
