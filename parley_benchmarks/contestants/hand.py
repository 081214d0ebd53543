"""Federated averaging of dense networks as a good engineer writes it by hand: clients stacked, no autograd.

No losses, no drawn orders, no checks, no records: the arithmetic, and as little besides as PyTorch allows.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .protocol import Work, options, private_output, serve


class Hand:
    """Every client's weights side by side, [clients, out, in], and back-propagation written out."""

    def __init__(self, work: Work) -> None:
        if work.model_name == "cnn" or work.lazy:
            raise ValueError("written by hand for dense networks whose samples are at hand")
        self.work = work
        self.one_hot = torch.eye(work.classes)
        self.reset(work.dropout)

    def reset(self, dropout: bool) -> None:
        self.weights = [w.clone() for w in self.work.model(dropout).state_dict().values()]

    @torch.no_grad()
    def run(self, start: int, stop: int) -> None:
        for number in range(start, stop):
            self.round(number)

    def round(self, number: int) -> None:
        work = self.work
        picked = work.cohorts[number, :, None] * work.samples + work.orders[number]
        x = work.x.view(-1, *work.shape)[picked]
        labels = self.one_hot[work.y.view(-1)[picked]]
        stacks = [w.expand(work.cohort, *w.shape).clone() for w in self.weights]
        layers = list(zip(stacks[::2], stacks[1::2], strict=True))
        for _ in range(work.epochs):
            for first in range(0, work.samples, work.batch):
                inputs = [x[:, first : first + work.batch]]
                for weight, bias in layers[:-1]:
                    inputs.append(torch.baddbmm(bias[:, None], inputs[-1], weight.mT).relu_())
                weight, bias = layers[-1]
                error = torch.baddbmm(bias[:, None], inputs[-1], weight.mT).softmax(-1)
                error = error.sub_(labels[:, first : first + work.batch]).div_(inputs[0].shape[1])
                for (weight, bias), into in zip(reversed(layers), reversed(inputs), strict=True):
                    back = torch.bmm(error, weight).mul_(into > 0) if into is not inputs[0] else error
                    weight.baddbmm_(error.mT, into, alpha=-work.lr)
                    bias.sub_(error.sum(1), alpha=work.lr)
                    error = back
        self.weights = [stack.mean(0) for stack in stacks]

    def parameters(self) -> Mapping[str, Tensor]:
        return dict(zip(self.work.model(False).state_dict(), self.weights, strict=True))


if __name__ == "__main__":
    output = private_output()
    work = Work(options().work)
    serve(Hand(work), work, output, {})
