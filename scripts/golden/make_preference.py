#!/usr/bin/env python3
"""Records the DPO loss of PyTorch and its gradient by the logits, in float64.

    python scripts/golden/make_preference.py > crates/tensor/golden/preference.txt

The loss is written as in Rafailov et al. 2023, equation 7, and as `trl` computes it:
-logsigmoid(beta * (log-ratio of the chosen - log-ratio of the rejected)), the mean over pairs.
The file has lines of a name and numbers.
"""

import torch
import torch.nn.functional as F

PAIRS, TOKENS, VOCAB, BETA = 3, 5, 7, 0.3


def main():
    generator = torch.Generator().manual_seed(7)
    shape = (2 * PAIRS, TOKENS, VOCAB)
    logits = (3 * torch.randn(shape, generator=generator)).double()
    # Numbers that float32 holds.
    logits = logits.float().double().requires_grad_()
    targets = torch.randint(VOCAB, (2 * PAIRS, TOKENS), generator=generator)
    targets[torch.rand(targets.shape, generator=generator) < 0.3] = -100
    references = -6 * torch.rand(2 * PAIRS, generator=generator).double()

    log_probs = -F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="none"
    )
    ratios = log_probs.view(2 * PAIRS, TOKENS).sum(1) - references
    chosen, rejected = ratios.view(PAIRS, 2).unbind(1)
    loss = -F.logsigmoid(BETA * (chosen - rejected)).mean()
    loss.backward()

    print("beta", BETA)
    print("logits", *logits.detach().flatten().tolist())
    print("targets", *targets.flatten().tolist())
    print("references", *references.tolist())
    print("loss", loss.item())
    print("gradient", *logits.grad.flatten().tolist())


if __name__ == "__main__":
    main()
