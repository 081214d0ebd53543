"""The work file: same seed, same work; schedules are valid; client data made on demand are reproducible."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from parley_benchmarks.contestants.parley_ import Parley
from parley_benchmarks.contestants.plain import Plain
from parley_benchmarks.contestants.protocol import Options, Work
from parley_benchmarks.work import write_work
from parley_benchmarks.workloads import WORKLOADS, workload


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_workload_can_be_written_and_read(name: str, tmp_path: Path) -> None:
    small = workload(name, "smoke")
    write_work(small, tmp_path)
    work = Work(tmp_path)
    x, y = work.visit(0, 0)
    assert x.shape == (small.samples, *small.shape)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    assert 0 <= int(y.min()) <= int(y.max()) < small.classes
    assert work.model(small.dropout)(x).shape == (small.samples, small.classes)


def test_schedules_visit_distinct_clients_and_every_sample_once(tmp_path: Path) -> None:
    wide = replace(workload("LR-MNIST", "smoke"), repeats=20)
    write_work(wide, tmp_path)
    work = Work(tmp_path)
    assert work.cohorts.shape == (wide.total_rounds, wide.cohort)
    assert all(len(set(row.tolist())) == wide.cohort for row in work.cohorts)
    assert torch.equal(work.orders.sort(-1).values, torch.arange(wide.samples).expand_as(work.orders))
    assert not torch.equal(work.orders[0, 0], work.orders[1, 0])
    client = int(work.cohorts[3, 1])
    x, y = work.visit(3, 1)
    assert torch.equal(x, work.x[client][work.orders[3, 1]])
    assert torch.equal(y, work.y[client][work.orders[3, 1]])


@pytest.mark.parametrize("name", ["CROWD", "MLP-FMNIST", "MILLION"])
def test_the_schedule_is_what_parley_draws_of_itself(name: str, tmp_path: Path) -> None:
    write_work(workload(name, "smoke"), tmp_path, seed=5)
    work = Work(tmp_path)
    ours, plain = Parley(work, Options(variant="", processes=1)), Plain(work)
    for contestant in (ours, plain):
        contestant.reset(dropout=False)
        contestant.run(0, 2)
    for place, weight in plain.parameters().items():
        torch.testing.assert_close(ours.parameters()[place], weight, rtol=1e-4, atol=1e-6)


def test_work_is_a_function_of_the_seed(tmp_path: Path) -> None:
    small = workload("MLP-FMNIST", "smoke")
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_work(small, tmp_path / folder, seed)
    for file in ("work.safetensors", "initial.safetensors"):
        a, b, c = ((tmp_path / folder / file).read_bytes() for folder in "abc")
        assert a == b
        assert a != c


def test_lazy_clients_hold_no_data_and_stay_the_same(tmp_path: Path) -> None:
    write_work(workload("MILLION", "smoke"), tmp_path)
    work = Work(tmp_path)
    assert work.x.numel() == 0
    for ours, again, other in zip(work.client(3), work.client(3), work.client(4), strict=True):
        assert torch.equal(ours, again)
        assert not torch.equal(ours, other)
