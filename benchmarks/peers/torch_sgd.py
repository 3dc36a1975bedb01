# SPDX-License-Identifier: Apache-2.0
"""What the programs that use PyTorch share: all but the way from trees to roots."""

from __future__ import annotations

from typing import Any

import torch
from protocol import RATE, Clock, Program, Tree, Weights, Workload


class TorchProgram(Program):
    """Inference without a tape, and training by autograd."""

    packages = ('torch',)

    def __init__(self, workload: Workload, weights: Weights, threads: int) -> None:
        torch.set_num_threads(threads)
        self.hidden = workload.hidden
        self.tensors = Weights(
            *(torch.from_numpy(x.copy()).requires_grad_() for x in weights)
        )

    def roots(self, trees: list[Tree], clock: Clock) -> torch.Tensor:
        """The h [trees, H] of the roots."""
        raise NotImplementedError

    def infer(self, trees: list[Tree], clock: Clock) -> Any:
        with torch.inference_mode():
            return self.roots(trees, clock).numpy()

    def train(self, trees: list[Tree], clock: Clock) -> float:
        loss = self.roots(trees, clock).sum(1).mean()
        grads = torch.autograd.grad(loss, self.tensors)
        with torch.no_grad():
            for tensor, grad in zip(self.tensors, grads, strict=True):
                tensor.sub_(grad, alpha=RATE)
        return loss.item()

    def weights(self) -> Weights:
        return Weights(*(x.detach().numpy().copy() for x in self.tensors))
