"""Training loops alone, one process per core: no server, no averaging, no messages. Nothing can be much quicker.

Each process trains one model on the clients of its share of every cohort, one after the other, without ever going back
to common weights. Its rounds cost what the same samples cost in a framework, less everything the framework does.
"""

import sys
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from .models import local_sgd
from .protocol import Work, options, private_output, serve


def loop(pipe: Connection, folder: Path, rank: int, processes: int) -> None:
    """One core's process: given (start, stop) it trains and answers; given None it ends."""
    torch.set_num_threads(1)
    work = Work(folder)
    model = work.model(work.dropout)
    while (rounds := pipe.recv()) is not None:
        for number in range(*rounds):
            for slot in range(rank, work.cohort, processes):
                x, y = work.visit(number, slot)
                local_sgd(model, x, y, work.batch, work.epochs, work.lr)
        pipe.send(None)


class Bare:
    """Hands every process the same rounds and waits for all of them."""

    def __init__(self, folder: Path, processes: int) -> None:
        context = get_context("spawn")
        self.pipes: list[Connection] = []
        for rank in range(processes):
            near, far = context.Pipe()
            context.Process(target=loop, args=(far, folder, rank, processes), daemon=True).start()
            self.pipes.append(near)

    def reset(self, dropout: bool) -> None:
        """There are no global weights to reset, and dropout stays as the workload says."""

    def run(self, start: int, stop: int) -> None:
        for pipe in self.pipes:
            pipe.send((start, stop))
        for pipe in self.pipes:
            pipe.recv()

    def parameters(self) -> Mapping[str, Tensor]:
        return {}

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)


if __name__ == "__main__":
    output = private_output()
    given = options()
    contestant = Bare(given.work, given.processes)
    serve(contestant, Work(given.work), output, {})
    contestant.close()
    sys.exit(0)
