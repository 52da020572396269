#!/usr/bin/env python3
"""Holds lockstep's GGUF files against llama.cpp: both must continue a text by the same tokens.

    python scripts/interop/gguf.py --lockstep target/release/lockstep

Small models of every architecture are trained for some steps and exported in f32, f16 and q8_0.
llama.cpp's greedy tokens of the first, and their log-probabilities, must be those of lockstep's own
logits. After each prefix of that text, the next token of the others must have lockstep's
log-probability within the rounding of the type, and be the same one where the second best is
further away than that.

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
# llama.cpp rounds weights and the inputs of each product. The errors of the terms are independent, so
# they stay in proportion to the result; a model adds up those of a few products, four as in the
# harness (tolerance.rs). Of f16 a unit is half the distance from 1 to the next number, of q8_0 half a
# step of 1/127.
ROUNDOFF = {"f16": 2.0**-11, "q8_0": 1 / 254}
DEPTH = 4
COMMON = ["train", "--quiet", "--preset", "tiny", "--steps", "300"]
LLAMA = ["model.family=llama", "model.layers=3", "model.width=64", "model.heads=4",
         "model.kv_heads=2", "model.ffn=96", "model.context=128"]
NEOX = ["model.layers=3", "model.width=64", "model.heads=4", "model.kv_heads=4", "model.ffn=256",
        "model.context=128"]
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
    "olmo2": [*LLAMA, "model.model_type=olmo2"],
    "phi3": [*LLAMA, "model.model_type=phi3"],
    "gemma2": [*LLAMA, "model.model_type=gemma2", "model.tied=true", "model.sliding_window=24",
               "model.attention_soft_cap=20", "model.final_soft_cap=15"],
    "gptneox": [*NEOX, "model.family=gpt_neox"],
    "gptneox in turn": [*NEOX, "model.family=gpt_neox", "model.parallel_residual=false",
                        "model.rotary_pct=1"],
    "bloom": [*NEOX, "model.family=bloom", "model.tied=true"],
}
# Log-probabilities of models with GELU: llama.cpp takes it from a table of 16-bit numbers, and in its
# tanh form.
WITH_TABLE = 2.0**-11 * DEPTH


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
    tokens, rows = list(PROMPT), []
    for _ in range(NUM_TOKENS):
        text = ",".join(map(str, tokens))
        logits = json.loads(call(lockstep, "inspect", run, "--logits", text, "--json"))["logits"]
        rows.append(log_softmax(logits[-1]))
        tokens.append(max(range(len(rows[-1])), key=rows[-1].__getitem__))
    ours, files = tokens[len(PROMPT):], {}
    for dtype in ("f32", *ROUNDOFF):
        files[dtype] = scratch / f"{dtype}.gguf"
        call(lockstep, "convert", run, "--to", "gguf", files[dtype], "--dtype", dtype)
    found, probabilities = answer(serve(files["f32"]), PROMPT, NUM_TOKENS)
    assert found == ours, f"{name}: {found} instead of {ours}"
    off = max(abs(a - max(row)) for a, row in zip(probabilities, rows))
    limit = WITH_TABLE if name.startswith(("gptneox", "bloom", "gemma2")) else LIMIT
    assert off < limit, f"{name}: log-probabilities differ by {off}"
    notes = [check_rounded(name, dtype, serve(files[dtype]), tokens, rows) for dtype in ROUNDOFF]
    text = bytes(ours).decode(errors="replace")
    print(f"{name:<16} f32: {NUM_TOKENS} equal tokens, log-probabilities within {off:.1e}; "
          f"{'; '.join(notes)}: {text!r}", flush=True)


def check_rounded(name, dtype, server, tokens, rows):
    """Next tokens after each prefix, of weights in fewer bits."""
    num_decided, worst = 0, 0.0
    for number, row in enumerate(rows):
        at = len(PROMPT) + number
        (token,), (probability,) = answer(server, tokens[:at], 1)
        # Logits differ from log-probabilities by a number that none of them exceeds.
        bound = DEPTH * ROUNDOFF[dtype] * max(map(abs, row))
        off = abs(probability - row[token])
        assert off < bound, f"{name} {dtype}: {probability} instead of {row[token]}, over {bound}"
        best, second = sorted(row, reverse=True)[:2]
        # Two logits err by the bound each.
        if best - second > 2 * bound:
            num_decided += 1
            assert token == tokens[at], f"{name} {dtype}: token {number} is {token}"
        worst = max(worst, off)
    assert num_decided > 0, f"{name} {dtype}: no token is certain"
    return f"{dtype}: {num_decided} certain tokens, within {worst:.1e}"


def log_softmax(row):
    best = max(row)
    total = best + math.log(sum(math.exp(logit - best) for logit in row))
    return [logit - total for logit in row]


def serve(file):
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = 128
    params.n_parallel = 1
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    return xllamacpp.Server(params)


def answer(server, prompt, num_tokens):
    """Greedy tokens after a prompt, and their log-probabilities."""
    done = server.handle_completions({
        "prompt": prompt, "n_predict": num_tokens, "temperature": 0.0, "ignore_eos": True,
        "logprobs": 1, "cache_prompt": False,
    })
    tokens = done["choices"][0]["logprobs"]["content"]
    return [token["id"] for token in tokens], [token["logprob"] for token in tokens]


def call(lockstep, *arguments):
    done = subprocess.run([lockstep, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"lockstep {' '.join(map(str, arguments))}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
