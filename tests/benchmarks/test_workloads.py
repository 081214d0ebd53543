"""Workloads have the published sizes, and bad names or core counts are refused."""

import pytest

from parley.core.errors import InputError
from parley_benchmarks.contestants.models import build
from parley_benchmarks.workloads import WORKLOADS, Target, available_cpus, workload


@pytest.mark.parametrize(
    ("name", "weights"),
    [("LR-MNIST", 7850), ("MLP-FMNIST", 79_510), ("CIFAR10-CNN", 1_626_442), ("EMPTY", 10), ("CROWD", 650)],
)
def test_models_have_the_published_number_of_weights(name: str, weights: int) -> None:
    found = WORKLOADS[name]
    model = build(found.model, found.shape, found.classes, found.dropout)
    assert sum(w.numel() for w in model.parameters()) == weights


def test_smoke_needs_no_data_and_keeps_the_shapes() -> None:
    for name, full in WORKLOADS.items():
        small = workload(name, "smoke")
        assert not small.data
        assert (small.model, small.shape, small.targets) == (full.model, full.shape, full.targets)
        assert small.clients * small.samples <= 160


def test_names_in_any_case_and_unknown_ones() -> None:
    assert workload("lr-mnist", cores=1).name == "LR-MNIST"
    with pytest.raises(InputError, match="did you mean 'LR-MNIST'"):
        workload("LR-MNST")


@pytest.mark.parametrize("cores", [0, 10_000])
def test_impossible_cores_are_refused(cores: int) -> None:
    with pytest.raises(InputError, match=f"1 to {len(available_cpus())}"):
        workload("EMPTY", cores=cores)


def test_bounds_point_the_right_way() -> None:
    assert Target("speedup", 2.0, "pfl").met_by(2.0)
    assert not Target("speedup", 2.0, "pfl").met_by(1.9)
    assert Target("peak GB", 1.5).met_by(1.5)
    assert not Target("peak GB", 1.5).met_by(1.6)
