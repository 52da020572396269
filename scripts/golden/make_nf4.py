#!/usr/bin/env python3
"""Records what bitsandbytes makes of a tensor in 4-bit NormalFloat, on the CPU.

    python scripts/golden/make_nf4.py > crates/tensor/golden/nf4.txt

Once with scales in float32 and once with double quantisation (`compress_statistics`), whose codes
of scales are chosen here as its backend in plain PyTorch does, the nearest; its kernel for CPUs takes
a neighbour now and then. Recorded are the codes, two a byte, the scales of the blocks of 64, and the
dequantised values of some. The file has lines of a name and numbers; those of the tensor are over
2^16.
"""

import torch
from bitsandbytes import functional as F

# Scales of a whole group of 256 and of a part of one.
BLOCKS = 300
BLOCK = 64
# Blocks whose values are in the file.
SHOWN = 6


def quantise(tensor, double):
    """Codes and state; scales are what dequantisation multiplies with."""
    packed, state = F.quantize_4bit(
        tensor, blocksize=BLOCK, quant_type="nf4", compress_statistics=False
    )
    if double:
        offset, code = state.absmax.mean(), F.create_dynamic_map()
        bounds = (code[:-1] + code[1:]) / 2
        scales = []
        for group in (state.absmax - offset).split(256):
            largest = group.abs().max()
            scaled = torch.clamp(group * (1.0 / largest.clamp(min=1e-38)), -1, 1)
            scales.append(code[torch.bucketize(scaled, bounds)] * largest + offset)
        state.absmax = torch.cat(scales)
    return packed, state


def main():
    generator = torch.Generator().manual_seed(30)
    sizes = torch.exp(0.5 * torch.randn((BLOCKS, 1), generator=generator))
    tensor = 0.02 * sizes * torch.randn((BLOCKS, BLOCK), generator=generator)
    # Integers over 2^16, which float32 holds.
    numerators = (tensor * 2**16).round()
    numerators[3] = 0
    tensor = numerators / 2**16
    print("tensor", *numerators.int().flatten().tolist())
    for name, double in (("single", False), ("double", True)):
        packed, state = quantise(tensor, double)
        if not double:
            print("codes", *packed.flatten().tolist())
        values = F.dequantize_4bit(packed, state)
        print(f"{name}.scales", *state.absmax.tolist())
        print(f"{name}.values", *values[:SHOWN].flatten().tolist())


if __name__ == "__main__":
    main()
