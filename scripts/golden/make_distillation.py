#!/usr/bin/env python3
"""Records the loss of knowledge distillation of PyTorch and its gradient by the logits, in float64.

    python scripts/golden/make_distillation.py > crates/tensor/golden/distillation.txt

The loss is that of Hinton et al. 2015: (1 - w) of the cross-entropy with the targets plus w T^2 of
the divergence of the teacher's probabilities at temperature T from the student's, the mean over
targets. The file has lines of a name and numbers.
"""

import torch
import torch.nn.functional as F

ROWS, VOCAB, TEMPERATURE, WEIGHT = 9, 21, 3.0, 0.75


def main():
    generator = torch.Generator().manual_seed(11)
    # Numbers that float32 holds.
    draw = lambda: (4 * torch.randn((ROWS, VOCAB), generator=generator)).double()
    logits, teacher = draw().requires_grad_(), draw()
    targets = torch.randint(VOCAB, (ROWS,), generator=generator)
    targets[torch.rand(ROWS, generator=generator) < 0.3] = -100

    is_target = targets != -100
    hard = F.cross_entropy(logits, targets, ignore_index=-100)
    soft = F.kl_div(
        F.log_softmax(logits[is_target] / TEMPERATURE, dim=-1),
        F.log_softmax(teacher[is_target] / TEMPERATURE, dim=-1),
        reduction="batchmean",
        log_target=True,
    )
    loss = (1 - WEIGHT) * hard + WEIGHT * TEMPERATURE**2 * soft
    loss.backward()

    print("temperature", TEMPERATURE)
    print("weight", WEIGHT)
    print("logits", *logits.detach().flatten().tolist())
    print("teacher", *teacher.flatten().tolist())
    print("targets", *targets.tolist())
    print("loss", loss.item())
    print("gradient", *logits.grad.flatten().tolist())


if __name__ == "__main__":
    main()
