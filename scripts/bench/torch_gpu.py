#!/usr/bin/env python3
"""PyTorch's speed on one GPU: the peer of `lockstep bench train` there, for `against_torch.py`.

    python3 scripts/bench/torch_gpu.py gpt2|llama [--eager] [--steps 20]

bf16 autocast over f32 parameters, fused AdamW, clipping to norm 1, `torch.compile` unless --eager.
gpt2 is GPT-2 124M on 64 x 1024 tokens (vocabulary 50,304, tied head), llama a Llama of 1.16
billion parameters on 8 x 2048 (20 layers of 2048, 16 heads, vocabulary 32,000, untied head). Prints
the median step as `... tok/s` and the peak memory.
"""

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F

SHAPES = {
    # layers, width, heads, hidden, vocabulary, batch, tokens
    "gpt2": (12, 768, 12, 3072, 50304, 64, 1024),
    "llama": (20, 2048, 16, 5632, 32000, 8, 2048),
}


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Block(nn.Module):
    def __init__(self, kind, width, heads, hidden):
        super().__init__()
        self.heads, self.is_llama = heads, kind == "llama"
        bias = not self.is_llama
        norm = nn.RMSNorm if self.is_llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(width), norm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.up = nn.Linear(width, hidden * (2 if self.is_llama else 1), bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)

    def forward(self, x, angles):
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        if self.is_llama:
            q, k = rotate(q, *angles).to(v.dtype), rotate(k, *angles).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        hidden = self.up(self.norm2(x))
        if self.is_llama:
            gate, up = hidden.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(hidden, approximate="tanh"))


class Model(nn.Module):
    def __init__(self, kind):
        super().__init__()
        layers, width, heads, hidden, vocabulary, _, tokens = SHAPES[kind]
        self.is_llama = kind == "llama"
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = None if self.is_llama else nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(kind, width, heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width) if self.is_llama else nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if not self.is_llama:
            self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)
        size = width // heads
        steps = 1e4 ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(tokens).float(), steps)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x, (self.cos, self.sin))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=sorted(SHAPES))
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--steps", type=int, default=20, help="timed steps (default 20)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    *_, vocabulary, batch, tokens = SHAPES[arguments.model]
    model = Model(arguments.model).cuda()
    forward = model if arguments.eager else torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ids = torch.randint(0, vocabulary, (batch, tokens + 1), device="cuda")
    seconds = []
    for _ in range(arguments.steps + 5):
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = forward(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    step = statistics.median(seconds[5:])
    how = "eager" if arguments.eager else "torch.compile"
    print(
        f"{arguments.model}, torch {torch.__version__}, {how}: {1e3 * step:.1f} ms,"
        f" {batch * tokens / step:.0f} tok/s, {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB,"
        f" loss {loss.item():.4f}"
    )


if __name__ == "__main__":
    main()
