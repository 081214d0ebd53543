"""precision = "bf16": near full precision, the same in all runtimes, resumable, refused where it is useless."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import parley as pl
from parley.core.errors import InputError
from parley.study.task import make_task

pytestmark = pytest.mark.filterwarnings("ignore:precision = .bf16. works here, but this processor")


def pictures() -> pl.Federation:
    random = torch.Generator().manual_seed(0)
    clients = {
        f"c{i}": (torch.randn(12, 1, 6, 6, generator=random), torch.randint(3, (12,), generator=random))
        for i in range(3)
    }
    return pl.Federation.from_arrays(clients, test_fraction=0.25)


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))


def run(precision: str = "bf16", rounds: int = 3, **options: object) -> pl.Run:
    method = pl.FedAvg(lr=0.1, epochs=1, batch=4)
    options = {"runtime": "inline", **options}
    return pl.train(method, pictures(), model=net, rounds=rounds, precision=precision, seed=1, **options)


def test_gradients_are_those_of_full_precision_to_two_digits() -> None:
    data = pictures().client("c0")
    tasks = [make_task(pictures(), net, 0, precision=precision) for precision in ("full", "bf16")]
    gradients = []
    for task in tasks:
        leaves = {name: value.requires_grad_() for name, value in task.initial().items()}
        outputs = task.apply(leaves, {}, data.x)
        assert outputs.dtype == torch.float32
        gradients.append(torch.autograd.grad(task.loss(outputs, data.y).mean(), list(leaves.values())))
    for full, half in zip(*gradients, strict=True):
        assert half.dtype == torch.float32
        assert not torch.equal(full, half)
        assert (full - half).norm() < 0.02 * full.norm()


def test_other_processes_give_the_same_bits() -> None:
    inline, others = run(), [run(runtime=name, workers=2) for name in ("pool", "wire")]
    assert inline.state["model"]["0.weight"].dtype == torch.float32
    for other in others:
        assert all(torch.equal(other.state["model"][name], value) for name, value in inline.state["model"].items())


def test_a_stack_is_close() -> None:
    inline, stacked = run(), run(runtime="stacked")
    for name, value in inline.state["model"].items():
        torch.testing.assert_close(stacked.state["model"][name], value, rtol=0.05, atol=5e-3)


def test_a_run_goes_on_with_its_own_precision_alone(tmp_path: Path) -> None:
    store = pl.RunStore(tmp_path)
    first = run(rounds=2, store=store)
    resumed = run(rounds=3, store=store, resume=first.id)
    whole = run(rounds=3)
    assert all(torch.equal(resumed.state["model"][name], value) for name, value in whole.state["model"].items())
    with pytest.raises(InputError, match="precision"):
        run("full", rounds=4, store=store, resume=first.id)


def test_refused_where_it_means_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Sequential has none"):
        make_task(pictures(), nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), 0, precision="bf16")
    with pytest.raises(InputError, match="there is no network"):
        make_task(pictures(), None, 0, precision="bf16")
    with pytest.raises(InputError, match="needs a model in float32"):
        make_task(pictures(), net().double(), 0, precision="bf16")
    with pytest.raises(InputError, match="did you mean 'bf16'"):
        make_task(pictures(), net, 0, precision="bf61")  # type: ignore[arg-type]


def test_a_processor_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": False})
    with pytest.warns(pl.ParleyWarning, match="no instructions for bfloat16"):
        make_task(pictures(), net, 0, precision="bf16")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_task(pictures(), net, 0, precision="bf16")
