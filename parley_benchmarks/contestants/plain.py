"""Federated averaging as a competent person writes it in one file of PyTorch, with no framework."""

from collections.abc import Mapping

import torch
from torch import Tensor

from .models import local_sgd
from .protocol import Work, options, private_output, serve


class Plain:
    """One model object that plays every client in turn; the average is summed up as the clients finish."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.reset(work.dropout)

    def reset(self, dropout: bool) -> None:
        self.model = self.work.model(dropout)
        self.weights = {name: w.clone() for name, w in self.work.initial.items()}

    def run(self, start: int, stop: int) -> None:
        for number in range(start, stop):
            self.round(number)

    def round(self, number: int) -> None:
        work = self.work
        total = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        for slot in range(work.cohort):
            self.model.load_state_dict(self.weights)
            x, y = work.visit(number, slot)
            local_sgd(self.model, x, y, work.batch, work.epochs, work.lr)
            for name, w in self.model.state_dict().items():
                total[name] += w
        self.weights = {name: w / work.cohort for name, w in total.items()}

    def parameters(self) -> Mapping[str, Tensor]:
        return self.weights


if __name__ == "__main__":
    output = private_output()
    work = Work(options().work)
    serve(Plain(work), work, output, {})
