#!/usr/bin/env python3
"""Holds `lockstep eval --task` against lm-evaluation-harness: the same log-likelihoods and scores.

    python scripts/interop/tasks.py --lockstep target/release/lockstep
    python scripts/interop/tasks.py --golden            writes crates/harness/golden/tasks

`transformers` writes tiny random models with tokenizers that do and do not begin a text with a start
token. Tasks with the shapes of ARC, HellaSwag, MMLU, Winogrande and PIQA, with few-shot examples
drawn by the harness, are answered by both; every log-likelihood and every score must be within 1e-4.

Needs Python 3.10. The packages are taken from --python PATH or LOCKSTEP_INTEROP_PYTHON, or installed
by pip into target/interop.
"""

import argparse
import json
import os
import pathlib
import random
import subprocess
import tempfile

import interpreter

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "crates" / "harness" / "golden" / "tasks"
LIMIT = 1e-4
SEED = 5
WORDS = ("river stone light water paper green small quiet north glass iron seven cold bread "
         "smoke wheel sand it's «été» red, blue").split()

SPLITS = "dataset_path: json\noutput_type: multiple_choice\n"
NORM = "metric_list:\n  - metric: acc\n  - metric: acc_norm\n  - metric: acc_bytes\n"
TASKS = {
    "arc": """task: arc
dataset_kwargs: {data_files: {train: arc-train.jsonl, test: arc.jsonl}}
training_split: train
test_split: test
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{choices.label.index(answerKey)}}"
doc_to_choice: "{{choices.text}}"
""" + SPLITS + NORM,
    "arc_shots": "include: arc.yaml\ntask: arc_shots\nnum_fewshot: 3\n",
    "hellaswag": """task: hellaswag
dataset_kwargs: {data_files: {validation: hellaswag.jsonl}}
validation_split: validation
test_split: null
num_fewshot: 2
doc_to_text: "{{query}}"
doc_to_target: "{{label}}"
doc_to_choice: "choices"
""" + SPLITS + NORM,
    "mmlu": """task: mmlu
dataset_kwargs: {data_files: {test: mmlu.json, dev: mmlu-dev.json}}
test_split: test
fewshot_split: dev
fewshot_config: {sampler: first_n}
num_fewshot: 2
description: "The following are multiple choice questions (with answers) about stones.\\n\\n"
doc_to_text: "{{question.strip()}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nAnswer:"
doc_to_choice: ["A", "B"]
doc_to_target: answer
""" + SPLITS + "metric_list:\n  - metric: acc\n",
    "winogrande": """task: winogrande
dataset_kwargs: {data_files: {test: winogrande.jsonl}}
test_split: test
doc_to_text: "{{answer}}"
doc_to_target: "{{sentence.split('_')[1].strip()}}"
doc_to_choice: "{{[sentence.split('_')[0] + a, sentence.split('_')[0] + b]}}"
""" + SPLITS,
    "piqa": """task: piqa
dataset_kwargs: {data_files: {test: piqa.jsonl}}
test_split: test
target_delimiter: ""
doc_to_text: "Goal: {{goal}} "
doc_to_target: label
doc_to_choice: "{{[sol1, sol2]}}"
""" + SPLITS,
    "bare": """task: bare
dataset_kwargs: {data_files: {test: piqa.jsonl}}
test_split: test
target_delimiter: ""
doc_to_text: ""
doc_to_target: label
doc_to_choice: "{{[sol1, sol2]}}"
""" + SPLITS,
}
GOLDEN_TASKS = ["arc_shots", "mmlu", "winogrande"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lockstep", type=pathlib.Path, help="the program to try")
    parser.add_argument("--golden", action="store_true", help="write the golden folder instead")
    parser.add_argument("--python", help="an interpreter that has lm_eval and transformers")
    arguments = parser.parse_args()
    if not (arguments.golden or arguments.lockstep):
        parser.error("name the program with --lockstep, or ask for --golden")
    interpreter.use(arguments.python)
    if arguments.golden:
        GOLDEN.mkdir(exist_ok=True)
        write_tasks(GOLDEN, GOLDEN_TASKS + ["arc"], 6)
        write_model(GOLDEN / "model", "llama", vocab=270)
        results = harness(GOLDEN, GOLDEN / "model", GOLDEN_TASKS)
        (GOLDEN / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        return
    lockstep = arguments.lockstep.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        write_tasks(scratch, list(TASKS), 24)
        for kind in ("llama", "gpt2"):
            write_model(scratch / kind, kind, vocab=320)
            compare(kind, lockstep, scratch, harness(scratch, scratch / kind, list(TASKS)))


def compare(kind, lockstep, scratch, expected):
    files = [f"{name}.yaml" for name in expected]
    command = [lockstep, "eval", kind, "--task", *files, "--samples", "--json", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=scratch)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    for found in json.loads(done.stdout)["tasks"]:
        name = found["task"]
        scores = expected[name]["scores"]
        ours = {metric: found[metric] for metric in scores}
        pairs = list(zip(found["log_likelihoods"], expected[name]["log_likelihoods"], strict=True))
        off = max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True))
        wrong = {metric for metric in scores if abs(ours[metric] - scores[metric]) > LIMIT}
        assert off < LIMIT and not wrong, f"{kind} {name}: {off}, {ours} instead of {scores}"
        text = ", ".join(f"{metric} {value:.4f}" for metric, value in sorted(ours.items()))
        print(f"{kind:<6} {name:<11} log-likelihoods within {off:.1e}; {text}", flush=True)


def harness(folder, model, names):
    """Scores and log-likelihoods of lm-evaluation-harness."""
    import lm_eval
    import lm_eval.tasks
    before = os.getcwd()
    os.chdir(folder)
    try:
        manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
        found = lm_eval.simple_evaluate(
            model="hf", model_args=f"pretrained={model},dtype=float32", tasks=names,
            task_manager=manager, device="cpu", batch_size=4, log_samples=True, bootstrap_iters=0)
    finally:
        os.chdir(before)
    results = {}
    for name in names:
        scores = {key.split(",")[0]: value for key, value in found["results"][name].items()
                  if key.endswith(",none") and "stderr" not in key}
        samples = sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
        # A sample is there once for every filter and metric.
        lists = {sample["doc_id"]: [float(response[0][0]) for response in sample["resps"]]
                 for sample in samples}
        results[name] = {"scores": scores, "log_likelihoods": list(lists.values())}
    return results


def write_tasks(folder, names, num):
    for name in names:
        (folder / f"{name}.yaml").write_text(TASKS[name])
    draw = random.Random(SEED)

    def words(least, most):
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))

    def arc():
        num_choices = draw.choice([3, 4])
        choices = {"text": [words(1, 4) for _ in range(num_choices)],
                   "label": list("ABCD"[:num_choices])}
        return {"question": words(4, 12) + "?", "choices": choices,
                "answerKey": draw.choice(choices["label"])}

    def hellaswag():
        return {"query": words(5, 30), "choices": [words(2, 9) for _ in range(4)],
                "label": str(draw.randrange(4))}

    def mmlu():
        return {"question": f" {words(3, 9)} ", "choices": [words(1, 3), words(1, 3)],
                "answer": draw.randrange(2)}

    def winogrande():
        return {"sentence": f"{words(3, 5)} _ {words(2, 5)}.", "a": words(1, 1), "b": words(1, 1),
                "answer": draw.randrange(2)}

    def piqa():
        return {"goal": words(2, 6), "sol1": words(2, 5), "sol2": words(2, 9),
                "label": draw.randrange(2)}

    def lines(name, make):
        documents = [make() for _ in range(num)]
        text = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
        (folder / name).write_text(text)

    def whole(name, make):
        (folder / name).write_text(json.dumps([make() for _ in range(num)], ensure_ascii=False))

    lines("arc-train.jsonl", arc)
    lines("arc.jsonl", arc)
    whole("mmlu.json", mmlu)
    whole("mmlu-dev.json", mmlu)
    lines("winogrande.jsonl", winogrande)
    if "hellaswag" in names:
        lines("hellaswag.jsonl", hellaswag)
        lines("piqa.jsonl", piqa)


def write_model(folder, kind, vocab):
    import tokenizers
    import torch
    import transformers
    torch.manual_seed(SEED)
    begin, end = "<s>", "</s>"
    if kind == "gpt2":
        begin = end = "<|endoftext|>"
    specials = sorted({begin, end})
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=vocab, special_tokens=specials,
                                             initial_alphabet=alphabet, show_progress=False)
    draw = random.Random(SEED)
    texts = [" ".join(draw.choice(WORDS) for _ in range(50)) for _ in range(20)]
    tokenizer.train_from_iterator(texts, trainer)
    if kind == "llama":
        tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))])
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=begin, eos_token=end)
    fast.save_pretrained(folder)
    ids = {"bos_token_id": tokenizer.token_to_id(begin), "eos_token_id": tokenizer.token_to_id(end)}
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=vocab, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, intermediate_size=24, max_position_embeddings=96,
            tie_word_embeddings=True, initializer_range=0.3, **ids)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(vocab_size=vocab, n_embd=24, n_layer=2, n_head=3,
                                         n_positions=128, initializer_range=0.3, **ids)
        model = transformers.GPT2LMHeadModel(config)
    model.eval().save_pretrained(folder)


if __name__ == "__main__":
    main()
