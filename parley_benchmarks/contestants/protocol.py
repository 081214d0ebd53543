"""What every contestant speaks: the work it is given, and one JSON object per line on standard input and output.

Commands and their answers (docs/bench.md tells the whole story):

    {"do": "reset", "dropout": false}      back to the initial weights              {"ok": true}
    {"do": "run", "start": 0, "stop": 20}  rounds 0..19, timed inside the process   {"ok": true, "seconds": 0.31}
    {"do": "save", "path": "w.safetensors"}  write the global weights               {"ok": true, "tensors": 4}
    {"do": "quit"}                         end                                      {"ok": true}

The first line a contestant writes, unasked, is {"ok": true, "versions": {...}} once it is set up and warm. A failure is
{"ok": false, "error": "..."}. Needs only NumPy, PyTorch and safetensors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from .models import build


class Work:
    """The work all contestants share, read from a folder that the harness wrote."""

    def __init__(self, folder: Path) -> None:
        spec = json.loads((folder / "spec.json").read_text())
        self.model_name: str = spec["model"]
        self.shape: tuple[int, ...] = tuple(spec["shape"])
        self.classes: int = spec["classes"]
        self.clients: int = spec["clients"]
        self.samples: int = spec["samples"]
        self.cohort: int = spec["cohort"]
        self.batch: int = spec["batch"]
        self.lr: float = spec["lr"]
        self.epochs: int = spec["epochs"]
        self.dropout: bool = spec["dropout"]
        self.lazy: bool = spec["lazy"]
        self.seed: int = spec["seed"]
        """From which Parley draws the cohorts and orders below by itself."""
        tensors = load_file(folder / "work.safetensors")
        self.cohorts: Tensor = tensors["cohorts"]
        """[rounds, cohort]: which clients each round visits."""
        self.orders: Tensor = tensors["orders"]
        """[rounds, cohort, samples]: the order in which a visited client's samples are cut into batches."""
        self.x: Tensor = tensors.get("x", torch.empty(0))
        """[clients, samples, *shape], empty when `lazy`."""
        self.y: Tensor = tensors.get("y", torch.empty(0))
        """[clients, samples] class numbers, empty when `lazy`."""
        self.initial: dict[str, Tensor] = load_file(folder / "initial.safetensors")
        # The file is mapped, not read: touch all of it now, so that no timed round pays for page faults.
        self.x.sum()

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """All samples of one client, in storage order."""
        if not self.lazy:
            return self.x[number], self.y[number]
        random = np.random.default_rng(number)
        x = random.standard_normal((self.samples, *self.shape), dtype=np.float32)
        return torch.from_numpy(x), torch.from_numpy(random.integers(self.classes, size=self.samples))

    def visit(self, number: int, slot: int) -> tuple[Tensor, Tensor]:
        """The samples of the `slot`-th client of round `number`, in the order in which it must train on them."""
        x, y = self.client(int(self.cohorts[number, slot]))
        order = self.orders[number, slot]
        return x[order], y[order]

    def model(self, dropout: bool) -> nn.Sequential:
        """The raced module with the initial weights, in training mode."""
        model = build(self.model_name, self.shape, self.classes, dropout)
        model.load_state_dict(self.initial)
        return model.train()


class Contestant(Protocol):
    """What a framework's script provides to `serve`."""

    def reset(self, dropout: bool) -> None:
        """Start again from the initial weights."""

    def run(self, start: int, stop: int) -> None:
        """Rounds `start` to `stop - 1` of the work; nothing may still be running when it returns."""

    def parameters(self) -> Mapping[str, Tensor]:
        """The global weights under the raced module's names; empty if there are none to compare."""


class Options(argparse.Namespace):
    """What the harness tells a contestant on its command line."""

    work: Path
    threads: int
    processes: int
    cpus: list[int]
    variant: str


def options() -> Options:
    """Read the command line, confine this process and its children to the given CPUs, and set torch's threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--cpus", type=lambda text: [int(c) for c in text.split(",")], default=[])
    parser.add_argument("--variant", default="")
    parsed = parser.parse_args(namespace=Options())
    if parsed.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, parsed.cpus)
    torch.set_num_threads(parsed.threads)
    return parsed


def private_output() -> TextIO:
    """Standard output for the protocol alone: from now on everything else printed goes to standard error."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return output


def serve(contestant: Contestant, work: Work, output: TextIO, versions: Mapping[str, str]) -> None:
    """Warm up with one round, say so, and obey until told to quit or until standard input ends."""

    def answer(**fields: Any) -> None:
        output.write(json.dumps(fields) + "\n")

    try:
        contestant.reset(work.dropout)
        contestant.run(0, 1)
        answer(ok=True, versions={"python": platform.python_version(), "torch": torch.__version__, **versions})
        for line in sys.stdin:
            command = json.loads(line)
            if command["do"] == "quit":
                answer(ok=True)
                return
            answer(ok=True, **_obey(contestant, command))
    except Exception as error:
        traceback.print_exc()
        answer(ok=False, error=f"{type(error).__name__}: {error}")


def _obey(contestant: Contestant, command: Mapping[str, Any]) -> dict[str, Any]:
    if command["do"] == "reset":
        contestant.reset(command["dropout"])
        return {}
    if command["do"] == "run":
        began = time.perf_counter()
        contestant.run(command["start"], command["stop"])
        return {"seconds": time.perf_counter() - began}
    if command["do"] == "save":
        weights = {name: w.detach().contiguous() for name, w in contestant.parameters().items()}
        save_file(weights, command["path"])
        return {"tensors": len(weights)}
    raise ValueError(f"no command is called '{command['do']}'")
