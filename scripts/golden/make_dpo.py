#!/usr/bin/env python3
"""Records steps of direct preference optimization of PyTorch in float64.

    python scripts/golden/make_dpo.py        writes crates/harness/golden/dpo

Needs torch, numpy and safetensors. The loss is that of Rafailov et al. 2023, equation 7, as `trl`
computes it: sums of the log-probabilities of the answers' tokens, the mean over pairs. The reference
is the model before training, and that without adapters where adapters are trained.

The folder is a Llama of Hugging Face in bfloat16; `adapter` beside it has the adapters from which
training starts, as peft has them; `pairs.jsonl` has the pairs as a user has them, and
`chat.jinja` their template. `steps.json` has, for all weights (`full`) and for adapters (`lora`),
the tokens, the reference's log-probabilities and the loss before each step of AdamW;
`grads.safetensors` has the gradients of the first and of the last step.
"""

import json

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import make_golden

FOLDER = make_golden.FOLDER / "dpo"
MODEL = {"family": "llama", "layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "ffn": 48,
         "vocab": 256, "context": 24, "tied": True, "norm_eps": 1e-5, "rope_theta": 10000.0}
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
    "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 24,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
}
RANK, ALPHA = 4, 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTER = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA,
    "lora_dropout": 0.0, "target_modules": TARGETS, "bias": "none", "fan_in_fan_out": False,
}
BETA, NUM_STEPS = 0.1, 6
# Above the rounding of float32 gradients: AdamW would make full steps of it, and the gradients of later
# steps be those of other weights.
EPS = 1e-5
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}" \
           "{% if add_generation_prompt %}a:{% endif %}"
# Prompts and answers of different lengths, an answer longer than the context among them.
PAIRS = [
    ("2+2?", "It is 4.", "5"),
    ("Hi", "Hello to you!", "What do you want from me today?"),
    ("Say it", "so so", "no no no"),
    ("Earth?", "é", "flat"),
]


def is_linear(name):
    return any(f".{target}." in name for target in TARGETS)


def encode(prompt, answer):
    """Inputs, and targets of the answer alone: its text and the end of its turn."""
    start = f"u:{prompt}\na:".encode()
    tokens = start + f"{answer}\n".encode()
    tokens = tokens[:MODEL["context"] + 1]
    padding = MODEL["context"] + 1 - len(tokens)
    targets = [make_golden.IGNORE] * (len(start) - 1) + list(tokens[len(start):])
    return list(tokens[:-1]) + [0] * padding, targets + [make_golden.IGNORE] * padding


def log_probabilities(params, inputs, targets):
    """Of the targets of each sequence, summed."""
    logits = make_golden.llama_logits(MODEL, params, inputs)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none",
                             ignore_index=make_golden.IGNORE)
    return -losses.view(targets.shape).sum(1)


def train(trained, params_of, inputs, targets, references):
    """Losses of all steps, and the gradients of the first and of the last one."""
    adamw = make_golden.ADAMW
    # Norms do not decay, as in make_golden.py.
    groups = [{"params": [p for p in trained.values() if (p.dim() == 2) == decays],
               "weight_decay": adamw["weight_decay"] if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=adamw["lr"],
        betas=(adamw["beta1"], adamw["beta2"]), eps=EPS, foreach=False)
    losses, grads = [], {}
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        ratios = log_probabilities(params_of(trained), inputs, targets) - references
        chosen, rejected = ratios.view(-1, 2).unbind(1)
        loss = -F.logsigmoid(BETA * (chosen - rejected)).mean()
        loss.backward()
        losses.append(loss.item())
        label = {0: "first", NUM_STEPS - 1: "last"}.get(step)
        if label:
            grads |= {f"{label}.{name}": p.grad.float().clone() for name, p in trained.items()}
        optimizer.step()
    return losses, grads


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False
    random = np.random.Generator(np.random.PCG64(20301))
    drawn = make_golden.make_weights(MODEL, make_golden.llama_shapes(MODEL), random)
    weights = {name: torch.tensor(value).bfloat16() for name, value in drawn.items()}
    adapters = {}
    for name in filter(is_linear, weights):
        outputs, inputs = weights[name].shape
        module = name.removesuffix(".weight")
        for end, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
            value = torch.tensor(0.1 * random.standard_normal(shape)).bfloat16()
            adapters[f"{module}.lora_{end}.weight"] = value

    rows = [encode(prompt, answer) for prompt, *both in PAIRS for answer in both]
    inputs, targets = (torch.tensor(part) for part in zip(*rows))
    base = {name: weight.double() for name, weight in weights.items()}

    def adapted(trained):
        # y = W x + s B A x is the product with W + s B A.
        params = dict(base)
        for name in filter(is_linear, weights):
            module = name.removesuffix(".weight")
            a, b = (trained[f"{module}.lora_{end}.weight"] for end in "AB")
            params[name] = base[name] + ALPHA / RANK * b @ a
        return params

    with torch.no_grad():
        references = log_probabilities(base, inputs, targets)
    double = lambda tensors: {n: w.double().clone().requires_grad_() for n, w in tensors.items()}
    full, full_grads = train(double(weights), dict, inputs, targets, references)
    lora, lora_grads = train(double(adapters), adapted, inputs, targets, references)

    (FOLDER / "adapter").mkdir(parents=True, exist_ok=True)
    write = lambda path, value: path.write_text(json.dumps(value, indent=1) + "\n")
    write(FOLDER / "config.json", CONFIG)
    save_file(weights, FOLDER / "model.safetensors", metadata={"format": "pt"})
    write(FOLDER / "adapter" / "adapter_config.json", ADAPTER)
    peft = {f"base_model.model.{name}": value for name, value in adapters.items()}
    save_file(peft, FOLDER / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    grads = {f"full.{name}": grad for name, grad in full_grads.items()}
    grads |= {f"lora.{name}": grad for name, grad in lora_grads.items()}
    save_file(grads, FOLDER / "grads.safetensors")
    lines = [{"prompt": prompt, "chosen": chosen, "rejected": rejected}
             for prompt, chosen, rejected in PAIRS]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (FOLDER / "pairs.jsonl").write_text(text)
    (FOLDER / "chat.jinja").write_text(TEMPLATE)
    steps = {"beta": BETA, "eps": EPS, "inputs": inputs.tolist(), "targets": targets.tolist(),
             "references": references.tolist(), "full": full, "lora": lora}
    (FOLDER / "steps.json").write_text(json.dumps(steps) + "\n")
    for name, losses in (("full", full), ("lora", lora)):
        print(f"{name}: loss {losses[0]:.9f} to {losses[-1]:.9f}")


if __name__ == "__main__":
    main()
