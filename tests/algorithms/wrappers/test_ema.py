"""EMA: it delegates everything, averages what the method reports, and is written in a study as a section."""

import inspect
from dataclasses import replace

import pytest
import torch

from parley.algorithms.averaging.datashare import DataShare
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.ntk.cp_ntk_fl import CpNtkFL
from parley.algorithms.ntk.ntk_fl import NtkFL
from parley.algorithms.ntk.tct import TCT
from parley.algorithms.personal.ditto import Ditto
from parley.algorithms.protocol import Algorithm
from parley.algorithms.wrappers.ema import EMA
from parley.channels.top_k import top_k
from parley.conformance import cases
from parley.core.errors import InputError
from parley.study.toml import study_from_dict
from parley.study.train import train

PLAIN = FedAvg(lr=0.1, steps=2, batch=4)


def test_everywhere(works_everywhere):
    works_everywhere(EMA(EMA(Ditto(lr=0.1, steps=2, batch=4), 0.5), 0.7))


def test_the_average_of_the_models_that_were_reported(table, network):
    models = [
        train(PLAIN, table, model=network, rounds=r, runtime="inline").model().tensors if r else None for r in range(5)
    ]
    run = train(EMA(PLAIN, 0.6), table, model=network, rounds=4, runtime="inline")
    mean = {f"model/{n}": v for n, v in run.task.initial().items()}
    mean |= {f"buffers/{n}": v for n, v in run.task.initial_buffers().items()}
    for model in models[1:]:
        mean = {n: 0.6 * mean[n] + 0.4 * v if v.is_floating_point() else v for n, v in model.items()}
    for name, value in run.model().tensors.items():
        torch.testing.assert_close(value, mean[name])
    assert torch.equal(run.module()[0].weight, run.model()["model"]["0.weight"])


def test_clients_do_not_notice(table, dense_network):
    """The same messages, memories, sampling, channels and second questions as without it."""
    scaffold = Scaffold(lr=0.1, steps=2, batch=4)
    for of, options in [
        (scaffold, {"cohort": 2}),
        (DataShare(lr=0.1, steps=2, batch=4, share=0.2), {}),
        (PLAIN, {"channels": top_k(0.2)}),
    ]:
        runs = [
            train(m, table, model=dense_network, rounds=3, runtime="inline", secret=bytes(16), **options)
            for m in (of, EMA(of, 0.9))
        ]
        inner = runs[1].state.get("of")
        for name, value in runs[0].state.tensors.items():
            assert torch.equal(inner[name], value)
        assert [r.metrics["up/bytes"] for r in runs[0].records] == [r.metrics["up/bytes"] for r in runs[1].records]
        for i in table.ids:
            for name, value in runs[0].memory(i).tensors.items():
                assert torch.equal(runs[1].memory(i).tensors[name], value)
    assert EMA(scaffold).needs.cohorts == "unbiased"
    assert EMA(Ditto()).learned(runs[0].task).personal


@pytest.mark.parametrize("method", [NtkFL(), DataShare(), TCT(rounds=4), CpNtkFL(projection=3), Ditto()])
def test_what_a_method_says_of_itself_holds_of_its_average(method):
    facts = {name for name, value in vars(Algorithm).items() if name[0] != "_" and not inspect.isfunction(value)}
    for name in facts - {"title", "incremental"}:
        assert getattr(EMA(of=method), name) == getattr(method, name), name


def test_in_a_study():
    table = {
        "rounds": 2,
        "data": {"name": "digits", "clients": 4},
        "model": {"name": "linear"},
        "algorithm": {"name": "ema", "decay": 0.5, "of": {"name": "scaffold", "lr": 0.05}},
    }
    study = study_from_dict(table)
    assert study.algorithm == EMA(Scaffold(lr=0.05), 0.5)
    assert study_from_dict(study.resolved()).algorithm == study.algorithm
    with pytest.raises(InputError, match=r"algorithm 'scaffold' has no setting 'lrr'"):
        study_from_dict(table | {"algorithm": {"name": "ema", "of": {"name": "scaffold", "lrr": 1}}})
    with pytest.raises(InputError, match="unknown algorithm 'fedavgg'"):
        study_from_dict(table | {"algorithm": {"name": "ema", "of": {"name": "fedavgg"}}})


def test_settings_that_make_no_sense(table, network):
    with pytest.raises(InputError, match=r"decay must lie in \[0, 1\)"):
        EMA(PLAIN, 1.0)
    with pytest.raises(InputError, match="is not an algorithm"):
        EMA("fedavg")  # type: ignore[arg-type]

    class Growing(FedAvg):
        def learned(self, task):
            return replace(super().learned(task), incremental=True)

    with pytest.raises(InputError, match="grows"):
        train(EMA(Growing()), table, model=network, rounds=1)


def other_way_round(patch) -> None:
    own = EMA._mean
    patch.setattr(EMA, "_mean", lambda self, before, now: own(replace(self, decay=1 - self.decay), before, now))


def averages_what_clients_start_from(patch) -> None:
    """The average goes back to the clients."""
    from parley.algorithms.wrappers import ema

    original = ema.EMA.inner

    def inner(self, state):
        mean = {f"model/{name}": value for name, value in ema.Message(state.get("ema"))["model"].items()}
        return ema.State(original(self, state).tensors | mean, original(self, state).scalars)

    patch.setattr(ema.EMA, "inner", inner)


@pytest.mark.parametrize("mistake", [other_way_round, averages_what_clients_start_from], ids=lambda m: m.__name__)
def test_mistakes_are_noticed(monkeypatch, mistake):
    mistake(monkeypatch)
    case = next(case for case in cases("ema") if "first 9 rounds" in case.statement)
    assert case.measure("inline") > 1e-3
