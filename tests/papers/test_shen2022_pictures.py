"""Paper 002's pictures: the studies run at scale smoke, and what they count is what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from parley.data import ClientData, DataInfo, Dataset
from parley.models.crops import RandomCrop
from parley_papers.catalogue import run_study
from parley_papers.shen2022 import picture_pairs
from parley_papers.shen2022.fig1 import _lift
from parley_papers.shen2022.picture_arms import FFGB, METHODS, SIZES, by_models, picture_arm, transmitted, warm
from parley_papers.shen2022.picture_pairs import DIGITS, HUNDRED, PAIRS, by_halves, picture_pair
from parley_papers.shen2022.table2 import PAPER, TARGETS
from parley_papers.trials import Arm, ArmRun


@pytest.mark.parametrize("name", ["002/table2", "002/table2-cifar100", "002/fig1", "002/fig1-cifar100"])
def test_at_scale_smoke(name: str, tmp_path: Path):
    result = run_study(name, "smoke", tmp_path)
    assert result.passed
    assert any(check.passed for check in result.checks)
    assert {file.suffix for file in result.files} == {".json", ".png"}


def trial(arm: Arm, *accuracy: float) -> ArmRun:
    values = np.array(accuracy)
    return ArmRun(arm, 0, np.arange(len(values), dtype=float), values, np.zeros(len(values)))


def test_models_are_counted_from_the_first_round_and_a_warm_start_is_one():
    arm, first = (picture_arm(method, "smoke", DIGITS, 0.1, 0.5) for method in ("FedAvg", FFGB))
    assert transmitted(trial(arm, 0.9, 0.1, 0.5, 0.4), 0.5) == 2  # what it begins with was not sent
    assert transmitted(trial(arm, 0.1, 0.2, 0.3, 0.4), 0.5) == SIZES["smoke"].rounds + 1
    assert transmitted(trial(arm, 0.1, np.nan, np.nan, np.nan), 0.5) == 4
    begun = warm(arm, first, "warm")
    assert begun.rounds == arm.rounds - 1
    assert by_models(trial(begun, 0.5, 0.6, 0.7)).tolist() == [0.5, 0.6, 0.7]
    assert by_models(trial(arm, 0.1, 0.3, 0.4, 0.5)).tolist() == [0.3, 0.4, 0.5]
    assert _lift(trial(begun, 0.5, 0.6, 0.7), trial(arm, 0.1, 0.3, 0.4, 0.5)) == pytest.approx(0.2)


def test_no_class_is_in_both_halves():
    data = Dataset(
        DataInfo("toy", (1,), 4, "classification", tuple("abcd")),
        torch.arange(40.0)[:, None],
        torch.arange(40) % 4,
        test=ClientData(torch.arange(8.0)[:, None], torch.arange(8) % 4),
    )
    ours, public = by_halves(data, 15, 12)
    assert (len(ours), len(public), ours.info.outputs, ours.info.classes) == (15, 12, 2, ("a", "b"))
    assert set((ours.x.long().flatten() % 4).tolist()) == {0, 1}
    assert torch.equal(ours.x.long().flatten() % 4, ours.y)
    assert set((public.long().flatten() % 4).tolist()) == {2, 3}
    assert ours.test.y.tolist() == [0, 1, 0, 1]


def test_the_problem_has_its_public_inputs_and_small_first_outputs():
    problem = picture_pair(DIGITS, 0.1)
    assert len(problem.federation) == 5
    for samples in ("validation", "test"):
        assert len(problem.evaluated_on(samples).public) == 600
    network = problem.model()
    assert float(network(problem.test.x).detach().std()) < 1


def test_every_number_of_table_2_has_its_target():
    assert {(pair, s) for pair in PAIRS for s in (0.1, 0.2, 0.3)} <= TARGETS.keys()
    assert {(HUNDRED, s) for s in (0.1, 0.2, 0.3)} <= TARGETS.keys()
    assert {(pair, s, target) for (pair, s) in TARGETS if pair in PAIRS for target in TARGETS[pair, s]} == PAPER.keys()
    assert all(len(row) == len(METHODS) and row[0] == min(row) for row in PAPER.values())


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)])
def test_the_paper_s_network(shape: tuple[int, ...]):
    info = DataInfo("toy", shape, 10, "classification")
    data = Dataset(info, torch.zeros(4, *shape), torch.zeros(4, dtype=torch.int64))
    network = picture_pairs._paper_network(data)()
    assert network(torch.zeros(2, *shape)).shape == (2, 10)
    weights = sum(parameter.numel() for parameter in network.parameters())
    # By hand: convolutions c 25 64 + 64 and 64 25 64 + 64, then the dense layers.
    channels, left = shape[0], 5 if shape[0] == 3 else 4
    a, b = (384, 192) if channels == 3 else (120, 84)
    dense = 64 * left**2 * a + a + a * b + b + b * 10 + 10
    assert weights == channels * 25 * 64 + 64 + 64 * 25 * 64 + 64 + dense


def test_a_padded_crop_shows_the_picture_itself_in_evaluation():
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    crop = RandomCrop(8, padding=4, standardise=False)
    assert torch.equal(crop.eval()(x), x)
    moved = crop.train()(x)
    assert moved.shape == x.shape
    assert not torch.equal(moved, x)
