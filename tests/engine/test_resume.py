"""A run that is killed at any moment and resumed gives the same numbers as one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from parley.algorithms.averaging.baselines import LocalOnly
from parley.algorithms.averaging.local_update import FedAdam, FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.core.errors import InputError
from parley.data import Federation
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.models import mlp
from parley.store.runs import RunStore
from parley.study.train import train

ROUNDS = 6
SCRIPT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("test_resume", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.study(*sys.argv[2:])
"""


def federation() -> Federation:
    random = np.random.default_rng(0)
    x = random.normal(size=(150, 7)).astype(np.float32)
    y = (x @ random.normal(size=(7, 3))).argmax(1)
    clients = {f"c{i}": (x[20 * i : 20 * i + 13 + i], y[20 * i : 20 * i + 13 + i]) for i in range(5)}
    return Federation.from_arrays(clients, test=(x[110:], y[110:]), test_fraction=0.2)


def study(path: str, kind: str, runtime: str, slow: str = "", resume: str = "") -> Run:
    """The run of these tests. In round 4 the clients are slow enough to be caught in the middle of it."""

    def pause(message) -> None:
        if slow and message.scalars.get("round") == 4:
            Path(slow).touch()
            time.sleep(60)

    class Slow(FedAdam):
        def broadcast(self, task, state, number):
            message = super().broadcast(task, state, number)
            return type(message)(message.tensors, {"round": number})

        @exchange(like=FedAdam.client)
        def client(self, task, message, memory, data, context) -> Reply:
            pause(message)
            return super().client(task, message, memory, data, context)

    class SlowLocal(LocalOnly):
        def broadcast(self, task, state, number):
            return type(super().broadcast(task, state, number))({}, {"round": number})

        @exchange(like=LocalOnly.client)
        def client(self, task, message, memory, data, context) -> Reply:
            pause(message)
            return super().client(task, message, memory, data, context)

    algorithm = Slow(lr=0.1, batch=5) if kind == "fedadam" else SlowLocal(lr=0.1, batch=5)
    return train(
        algorithm,
        federation(),
        model=mlp(6),
        rounds=ROUNDS,
        cohort=3,
        seed=4,
        runtime=runtime,
        workers=2,
        evaluation=Evaluation(clients="all"),
        store=path,
        checkpoint=0.0,
        resume=resume or None,
    )


def agree(a: RunStore, one: str, b: RunStore, other: str) -> None:
    """What is stored of two runs, apart from times."""
    left, right = a.records(one), b.records(other)
    assert [record.number for record in left] == [record.number for record in right]
    for ours, theirs in zip(left, right, strict=True):
        assert ours.failures == theirs.failures
        names = {name for name in ours.metrics if "seconds" not in name}
        assert names == {name for name in theirs.metrics if "seconds" not in name}
        assert all(ours.metrics[name] == theirs.metrics[name] for name in names)


def identical(a: Run, b: Run) -> None:
    assert a.state.tensors.keys() == b.state.tensors.keys()
    assert all(torch.equal(value, b.state.tensors[name]) for name, value in a.state.tensors.items())
    assert (a.best_round, a.best_value) == (b.best_round, b.best_value)


def interrupted(folder: Path, kind: str, runtime: str, how: signal.Signals) -> str:
    """Start the study in a process of its own, end it in the middle of round 4 and give the run's id."""
    slow = folder / "slow"
    command = [sys.executable, "-c", SCRIPT, __file__, str(folder / "runs.db"), kind, runtime, str(slow)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    ) as process:
        deadline = time.monotonic() + 120
        while not slow.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert slow.exists()
        process.send_signal(how)
        process.wait(30)
    with RunStore(folder / "runs.db") as store:
        info = store.info("last")
        assert (info.status, info.rounds) == ("interrupted", 3)
        assert [record.number for record in store.records(info.id)] == [0, 1, 2, 3]
        return info.id


@pytest.mark.parametrize(("kind", "runtime"), [("fedadam", "pool"), ("local-only", "inline")])
def test_killed_in_the_middle_of_a_round(tmp_path: Path, kind: str, runtime: str):
    """Server momentum in one, clients' memories in the other; both are where they were."""
    run = interrupted(tmp_path, kind, runtime, signal.SIGKILL)
    resumed = study(str(tmp_path / "runs.db"), kind, runtime, resume=run)
    whole = study(str(tmp_path / "whole.db"), kind, "inline")
    identical(resumed, whole)
    with RunStore(tmp_path / "runs.db") as store, RunStore(tmp_path / "whole.db") as other:
        assert store.info(run).status == "finished"
        agree(store, run, other, str(whole.id))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "runtime"), [("fedadam", "inline"), ("local-only", "pool"), ("local-only", "stacked")]
)
def test_killed_elsewhere(tmp_path: Path, kind: str, runtime: str):
    run = interrupted(tmp_path, kind, runtime, signal.SIGKILL)
    resumed = study(str(tmp_path / "runs.db"), kind, runtime, resume=run)
    identical(resumed, study(str(tmp_path / "whole.db"), kind, "inline" if runtime != "stacked" else runtime))


def test_an_interrupt_saves_a_checkpoint(tmp_path: Path):
    run = interrupted(tmp_path, "fedadam", "inline", signal.SIGINT)
    with RunStore(tmp_path / "runs.db") as store:
        found = store.checkpoint(run)
        assert found is not None
        assert found[0] == found[1]["round"] == 3
        assert store.info(run).summary["rounds"] == 3
    resumed = study(str(tmp_path / "runs.db"), "fedadam", "inline", resume=run)
    identical(resumed, study(str(tmp_path / "whole.db"), "fedadam", "inline"))


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", [FedAdam, LocalOnly])
@pytest.mark.parametrize("place", ["evaluation", "memories", "listener", "checkpoint"])
@pytest.mark.parametrize(("error", "moment"), [(KeyboardInterrupt, "before"), (Stop, "after")])
def test_stopped_at_an_awkward_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place, error, moment, kind):
    """While the model is evaluated, its round accepted or saved: never half a round, always resumable."""
    algorithm = kind(lr=0.1, batch=5)
    say = {"model": mlp(6), "rounds": ROUNDS, "cohort": 3, "runtime": "inline", "evaluation": Evaluation(clients="all")}
    calls = {"count": 0}
    targets = {
        "evaluation": "parley.engine.evaluation.Evaluator.measure",
        "memories": "parley.store.memories.Memories.accept",
        "listener": "parley.engine.listeners.Listener.round",
        "checkpoint": "parley.store.checkpoints.Checkpoints.save",
    }

    def bomb(original):
        def wrapped(*args, **options):
            calls["count"] += 1
            now = calls["count"] == 4
            if now and moment == "before":
                raise error("now")
            result = original(*args, **options)
            if now:
                raise error("now")
            return result

        return wrapped

    with RunStore(tmp_path / "runs.db") as store:
        whole = train(algorithm, federation(), store=store, **say)
        with monkeypatch.context() as patch:
            module, _, name = targets[place].rpartition(".")
            owner = getattr(sys.modules[module.rpartition(".")[0]], module.rpartition(".")[2])
            patch.setattr(owner, name, bomb(getattr(owner, name)))
            with pytest.raises(error):
                train(algorithm, federation(), store=store, checkpoint=0.0, listeners=[Listener()], **say)
        info = store.info("last")
        assert info.status == ("interrupted" if error is KeyboardInterrupt else "failed")
        resumed = train(algorithm, federation(), store=store, resume=info.id, **say)
        identical(resumed, whole)
        agree(store, info.id, store, str(whole.id))


def test_two_runs_at_once_in_one_store(tmp_path: Path):
    """Two processes write to the same file; a third may not take over a run that is under way."""
    path = tmp_path / "runs.db"
    code = SCRIPT.replace("module.study", "print(module.study") + "\n"
    code = code.replace("(*sys.argv[2:])", "(*sys.argv[2:]).id)")
    command = [sys.executable, "-c", code, __file__, str(path)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    kinds = ("fedadam", "local-only")
    processes = [
        subprocess.Popen([*command, kind, "inline"], stdout=subprocess.PIPE, text=True, env=env) for kind in kinds
    ]
    ids = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    with RunStore(path) as store, RunStore(tmp_path / "whole.db") as other:
        assert sorted(info.id for info in store.runs()) == sorted(ids)
        for kind, run in zip(kinds, ids, strict=True):
            whole = study(str(tmp_path / "whole.db"), kind, "inline")
            agree(store, run, other, str(whole.id))
        store.claim(ids[0])
        with pytest.raises(InputError, match="being worked on"):
            study(str(path), "fedadam", "inline", resume=ids[0])


def test_a_finished_run_can_go_on(tmp_path: Path):
    say = {"model": mlp(6), "cohort": 3, "runtime": "inline", "store": tmp_path / "runs.db"}
    short = train(FedAdam(), federation(), rounds=3, **say)
    longer = train(FedAdam(), federation(), rounds=5, resume=short.id, **say)
    identical(longer, train(FedAdam(), federation(), rounds=5, **say))
    again = train(FedAdam(), federation(), rounds=5, resume=short.id, **say)  # nothing left to do
    identical(longer, again)


def test_a_resumed_run_is_running(tmp_path: Path):
    seen = []

    class Look(Listener):
        def round(self, record) -> None:
            with RunStore(tmp_path / "runs.db") as store:
                seen.append(store.info("last").status)

    say = {"model": mlp(6), "runtime": "inline", "store": tmp_path / "runs.db"}
    run = train(FedAvg(), federation(), rounds=1, **say)
    train(FedAvg(), federation(), rounds=2, resume=run.id, listeners=[Look()], **say)
    assert seen == ["running"]


def test_runs_that_cannot_start_leave_nothing_behind(tmp_path: Path):
    with RunStore(tmp_path / "runs.db") as store:
        for wrong in ({"runtime": "poll"}, {"rounds": 0}, {"model": mlp(6, 3), "loss": "crossentropy"}):
            with pytest.raises(InputError):
                train(FedAvg(), federation(), **({"model": mlp(6), "rounds": 1, "store": store} | wrong))
        assert store.runs() == []
        with pytest.raises(InputError, match="no run 'x'"):
            train(FedAvg(), federation(), model=mlp(6), rounds=1, store=store, resume="x")
    with pytest.raises(InputError, match="resume needs the store"):
        train(FedAvg(), federation(), model=mlp(6), rounds=1, resume="x")
