"""The reference loop computes federated averaging: checked against a softmax regression worked out in NumPy."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from parley_benchmarks.contestants.hand import Hand
from parley_benchmarks.contestants.plain import Plain
from parley_benchmarks.contestants.protocol import Work
from parley_benchmarks.work import write_work
from parley_benchmarks.workloads import workload


def test_plain_equals_a_closed_form_federated_softmax_regression(tmp_path: Path) -> None:
    write_work(workload("LR-MNIST", "smoke"), tmp_path)
    work = Work(tmp_path)
    weight, bias = (work.initial[name].double().numpy() for name in ("0.weight", "0.bias"))
    for number in range(2):
        ends = []
        for slot in range(work.cohort):
            w, b = weight.copy(), bias.copy()
            x, y = (part.double().numpy() for part in work.visit(number, slot))
            for start in range(0, len(x), work.batch):
                inputs, labels = x[start : start + work.batch], y[start : start + work.batch].astype(int)
                scores = np.exp(inputs @ w.T + b)
                error = scores / scores.sum(1, keepdims=True) - np.eye(work.classes)[labels]
                w -= work.lr * error.T @ inputs / len(inputs)
                b -= work.lr * error.mean(0)
            ends.append((w, b))
        weight, bias = (np.mean([end[i] for end in ends], axis=0) for i in (0, 1))
    contestant = Plain(work)
    contestant.run(0, 2)
    found = contestant.parameters()
    torch.testing.assert_close(found["0.weight"].double(), torch.from_numpy(weight), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found["0.bias"].double(), torch.from_numpy(bias), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["LR-MNIST", "MLP-FMNIST", "CROWD"])
def test_stacks_written_by_hand_end_with_the_plain_loops_weights(name: str, tmp_path: Path) -> None:
    write_work(replace(workload(name, "smoke"), epochs=2), tmp_path)
    work = Work(tmp_path)
    plain, hand = Plain(work), Hand(work)
    for contestant in (plain, hand):
        contestant.run(0, 2)
    for place, weight in hand.parameters().items():
        torch.testing.assert_close(weight, plain.parameters()[place], rtol=1e-4, atol=1e-6)


def test_doing_nothing_leaves_the_weights(tmp_path: Path) -> None:
    write_work(workload("EMPTY", "smoke"), tmp_path)
    work = Work(tmp_path)
    contestant = Plain(work)
    contestant.run(0, 2)
    for name, weight in contestant.parameters().items():
        torch.testing.assert_close(weight, work.initial[name])


def test_reset_starts_again(tmp_path: Path) -> None:
    write_work(workload("MLP-FMNIST", "smoke"), tmp_path)
    contestant = Plain(Work(tmp_path))
    contestant.run(0, 2)
    first = dict(contestant.parameters())
    contestant.reset(dropout=False)
    contestant.run(0, 2)
    assert all(torch.equal(first[name], weight) for name, weight in contestant.parameters().items())
