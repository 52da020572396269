#!/usr/bin/env python3
"""Records steps of QLoRA of PyTorch in float64, over the base that bitsandbytes dequantises.

    python scripts/golden/make_qlora.py        writes crates/harness/golden/qlora

Needs torch, numpy, safetensors and bitsandbytes. The folder is a Llama of Hugging Face in bfloat16;
`adapter` beside it has the adapters as peft has them, from which training starts; `losses.json` has
the batch, the loss before each step of AdamW, and the gradients of the first step.
"""

import json

import numpy as np
import torch
import torch.nn.functional as F
from bitsandbytes import functional as bnb
from safetensors.torch import save_file

import make_golden
import make_nf4

FOLDER = make_golden.FOLDER / "qlora"
MODEL = {"family": "llama", "layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 128,
         "vocab": 256, "context": 24, "tied": True, "norm_eps": 1e-5, "rope_theta": 10000.0}
RANK, ALPHA = 4, 16
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 24,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16",
}
ADAPTER = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA,
    "lora_dropout": 0.0, "target_modules": TARGETS, "bias": "none", "fan_in_fan_out": False,
}


def dequantised(weight):
    """What a layer of bitsandbytes multiplies with, in 4-bit NormalFloat with double quantisation."""
    packed, state = make_nf4.quantise(weight.float(), double=True)
    return bnb.dequantize_4bit(packed, state).double()


def is_linear(name):
    return any(f".{target}." in name for target in TARGETS)


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.mkldnn.enabled = False
    random = np.random.Generator(np.random.PCG64(20300))
    drawn = make_golden.make_weights(MODEL, make_golden.llama_shapes(MODEL), random)
    weights = {name: torch.tensor(value).bfloat16() for name, value in drawn.items()}
    base = {n: dequantised(w) if is_linear(n) else w.double() for n, w in weights.items()}
    adapters = {}
    for name in filter(is_linear, weights):
        outputs, inputs = weights[name].shape
        module = name.removesuffix(".weight")
        for end, shape in (("A", (RANK, inputs)), ("B", (outputs, RANK))):
            value = torch.tensor(0.05 * random.standard_normal(shape)).bfloat16()
            adapters[f"{module}.lora_{end}.weight"] = value
    batch = (make_golden.NUM_SEQUENCES, MODEL["context"])
    inputs, targets = (random.integers(0, MODEL["vocab"], batch) for _ in range(2))

    trained = {name: w.double().requires_grad_() for name, w in adapters.items()}
    adamw = make_golden.ADAMW
    optimizer = torch.optim.AdamW(
        trained.values(), lr=adamw["lr"], betas=(adamw["beta1"], adamw["beta2"]),
        eps=adamw["eps"], weight_decay=adamw["weight_decay"], foreach=False,
    )
    losses, grads = [], None
    for _ in range(make_golden.NUM_STEPS):
        optimizer.zero_grad()
        # y = W x + s B A x is the product with W + s B A.
        params = dict(base)
        for name in filter(is_linear, weights):
            module = name.removesuffix(".weight")
            a, b = (trained[f"{module}.lora_{end}.weight"] for end in "AB")
            params[name] = base[name] + ALPHA / RANK * b @ a
        logits = make_golden.llama_logits(MODEL, params, torch.tensor(inputs))
        labels = torch.tensor(targets).reshape(-1)
        loss = F.cross_entropy(logits.view(-1, MODEL["vocab"]), labels)
        loss.backward()
        if grads is None:
            grads = {name: w.grad.clone() for name, w in trained.items()}
        losses.append(loss.item())
        optimizer.step()

    (FOLDER / "adapter").mkdir(parents=True, exist_ok=True)
    write = lambda path, value: path.write_text(json.dumps(value, indent=1) + "\n")
    write(FOLDER / "config.json", CONFIG)
    save_file(weights, FOLDER / "model.safetensors", metadata={"format": "pt"})
    write(FOLDER / "adapter" / "adapter_config.json", ADAPTER)
    peft = {f"base_model.model.{name}": value for name, value in adapters.items()}
    save_file(peft, FOLDER / "adapter" / "adapter_model.safetensors", metadata={"format": "pt"})
    save_file({name: grad.float() for name, grad in grads.items()}, FOLDER / "grads.safetensors")
    batch = {"inputs": inputs.tolist(), "targets": targets.tolist(), "losses": losses}
    (FOLDER / "losses.json").write_text(json.dumps(batch) + "\n")
    print(f"loss {losses[0]:.9f} to {losses[-1]:.9f}")


if __name__ == "__main__":
    main()
