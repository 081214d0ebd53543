"""Clients on the workers of real Ray clusters: the bits of inline, and what happens when workers and nodes die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.boosting.ffgb import FFGB
from parley.algorithms.boosting.weak import RegressionTree
from parley.algorithms.exchange import exchange
from parley.algorithms.ntk.ntk_fl import NtkFL
from parley.algorithms.parts.fedals import FedALS
from parley.cli.main import main
from parley.core.errors import InputError
from parley.engine.listeners import Listener
from parley.engine.settings import Evaluation, Faults
from parley.models import mlp
from parley.statistics.run import statistics
from parley.store.runs import RunStore
from parley.study.stored import load_run
from parley.study.train import train
from parley.study.tuning_settings import Tuning
from parley.tuning.candidates import candidates
from parley.tuning.search import search

if "ray" not in os.environ.get("PARLEY_REQUIRE", ""):
    pytest.importorskip("ray")
pytestmark = [
    # Ray's own processes and sockets outlive the tests that use them.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.xdist_group("ray"),
]


@contextmanager
def cluster(*cpus: int) -> Iterator[Any]:
    """Raylets with so many CPUs each; the first is the head."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    import ray
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 100 << 20, "include_dashboard": False}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **small})
    try:
        made.others = [made.add_node(num_cpus=count, object_store_memory=100 << 20) for count in cpus[1:]]
        made.wait_for_nodes()
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    with cluster(1, 1) as made:
        yield made


METHODS = {
    "scaffold": Scaffold(lr=0.05, steps=3, batch=7),
    "fedavg": FedAvg(lr=0.05, batch=7),
    "fedals": FedALS(lr=0.05, alpha=2, steps=2),
    "ffgb": FFGB(lr=0.5, steps=2, mu=0.1, learner=RegressionTree(3)),
    "ntk-fl": NtkFL(times=(5, 20), lr=0.5, upload="top-k", density=0.5, share=0.9),
}
SMOKE = "scaffold"
"""The one that is run whenever anything is."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == SMOKE else pytest.mark.slow) for name in METHODS]
)
def test_two_nodes_give_the_bits_of_inline(two_nodes, table, same, name: str):
    """Evaluated everywhere; and how busy each node was."""
    algorithm = METHODS[name]
    everywhere = Evaluation(clients="all", batch=37)
    options: dict[str, Any] = {"rounds": 3, "cohort": 4, "evaluation": everywhere, "seed": 1}
    if algorithm.needs.network:
        options["model"] = mlp(9)
    own = train(algorithm, table, runtime="inline", **options)
    far = train(algorithm, table, runtime="ray", address=two_nodes.address, **options)
    assert far.note.count("1 on ") == 2
    busy = [name for name in far.records[-1].metrics if name.startswith("busy/")]
    assert len(busy) == 2
    assert all(0 <= far.last(name) <= 1 for name in busy)
    for record in far.records:
        for name in busy:
            record.metrics.pop(name, None)
    same(own, far)


@pytest.mark.slow
def test_statistics_are_those_of_inline(two_nodes, table):
    inline, far = (
        statistics(table, floor=2, **where)
        for where in ({"runtime": "inline"}, {"runtime": "ray", "address": two_nodes.address})
    )
    assert far == inline
    assert far.samples == 100


@pytest.mark.slow
def test_own_classes_and_failing_clients(two_nodes, table):
    class Picky(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context):
            if len(data) == 9:
                raise ValueError("not me")
            return super().client(task, message, memory, data, context)

    run = train(
        Picky(lr=0.1, batch=4),
        table,
        model=mlp(4),
        rounds=1,
        faults=Faults(quorum=0.1),
        runtime="ray",
        address=two_nodes.address,
    )
    assert [failure.reason[:26] for failure in run.records[-1].failures] == ["raised ValueError: not me "]


def deadly(flag: Path, always: bool) -> FedAvg:
    """The client with 9 samples kills its worker, once or always."""

    class Deadly(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context):
            if len(data) == 9 and (always or not flag.exists()):
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().client(task, message, memory, data, context)

    return Deadly(lr=0.1, batch=4)


@pytest.mark.slow
def test_a_worker_that_dies_takes_nobody_with_it(two_nodes, table, tmp_path, same):
    options = {"model": mlp(4), "rounds": 2, "faults": Faults(quorum=0.1)}
    far = {"runtime": "ray", "address": two_nodes.address}
    once = train(deadly(tmp_path / "flag", always=False), table, **options, **far)
    assert not once.failures()
    plain = train(FedAvg(lr=0.1, batch=4), table, runtime="inline", **options)
    assert all(torch.equal(value, once.state.tensors[name]) for name, value in plain.state.tensors.items())
    dropped = train(deadly(tmp_path / "flag", always=True), table, **options, **far)
    assert {absence.reason.split(" (")[0] for absence in dropped.failures()} == {"its Ray worker died twice"}
    assert len(dropped.failures()) == 2


@pytest.mark.slow
def test_a_client_beyond_its_deadline_is_given_up(two_nodes, table):
    class Slow(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context):
            if len(data) == 9:
                time.sleep(1000)
            return super().client(task, message, memory, data, context)

    run = train(
        Slow(lr=0.1, batch=4),
        table,
        model=mlp(4),
        rounds=1,
        faults=Faults(quorum=0.1, deadline=3.0),
        runtime="ray",
        address=two_nodes.address,
    )
    assert [failure.reason for failure in run.records[-1].failures] == ["gave no answer within 3 s."]


@pytest.mark.slow
def test_a_node_that_is_killed_in_a_round_changes_no_number(table, same):
    options = {"model": mlp(9), "rounds": 4, "seed": 3}

    class Unplug(Listener):
        def __init__(self, cluster: Any) -> None:
            self.cluster = cluster

        def round(self, record) -> None:
            if record.number == 2:
                self.cluster.remove_node(self.cluster.others[0], allow_graceful=False)

    plain = train(Scaffold(lr=0.05, steps=3, batch=7), table, runtime="inline", **options)
    with cluster(1, 1) as made:
        far = train(
            Scaffold(lr=0.05, steps=3, batch=7),
            table,
            runtime="ray",
            address=made.address,
            listeners=[Unplug(made)],
            **options,
        )
    assert not far.failures()
    assert all(torch.equal(value, far.state.tensors[name]) for name, value in plain.state.tensors.items())


STUDY = """
rounds = 6
[data]
name = "iris"
clients = 4
test_fraction = 0.3
[model]
name = "linear"
[algorithm]
name = "fedavg"
steps = 2
[evaluate]
clients = "all"
[store]
checkpoint = 0.0
"""
TABLE = tomllib.loads(STUDY)


def tuned(store: Path, address: str | None = None, **settings: Any) -> tuple[dict[float, Any], dict[str, set[str]]]:
    """Rate -> what was tried, and run -> the nodes that executed its clients."""
    tuning = Tuning(**{"params": {"algorithm.lr": [0.01, 0.1, 0.5]}, "sampler": "grid"} | settings)
    name = {"name": "inline"} if address is None else {"name": "ray", "address": address}
    with RunStore(store / "runs.db") as kept:
        (found,) = search(candidates(TABLE | {"runtime": name}, store, tuning), kept)
        nodes = {info.id: {n for n in kept.metric_names(info.id) if n.startswith("busy/")} for info in kept.runs()}
    return {one.settings["algorithm.lr"]: one for one in found.trials}, nodes


@pytest.mark.slow
def test_trials_share_the_cluster_and_score_as_without_it(two_nodes, tmp_path):
    far, nodes = tuned(tmp_path / "far", two_nodes.address, workers=2)
    own, _ = tuned(tmp_path / "own")
    assert {rate: one.score for rate, one in far.items()} == {rate: one.score for rate, one in own.items()}
    assert [len(one) for one in nodes.values()] == [1, 1, 1]  # a worker each
    assert len(set.union(*nodes.values())) == 2


@pytest.mark.slow
def test_no_more_trials_are_begun_than_fit_and_those_that_lead_nowhere_are_stopped(two_nodes, tmp_path):
    rates = [0.5, 0.4, 0.3, 0.2, 1e-6, 1e-7, 1e-8]
    tried, _ = tuned(tmp_path, two_nodes.address, workers=9, params={"algorithm.lr": rates}, pruner="median")
    assert len(tried) == 7
    stopped = {rate: one.rounds for rate, one in tried.items() if one.pruned}
    assert stopped
    assert max(stopped) < 0.1
    assert max(stopped.values()) < 6


_KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import test_ray as t
t.TABLE["rounds"] = 60
t.tuned(Path(sys.argv[1]), sys.argv[2], workers=2)
"""


@pytest.mark.slow
def test_a_killed_search_goes_on_from_its_checkpoints(two_nodes, tmp_path, monkeypatch):
    """With kill -9, in the middle of two trials; their processes end with it and leave the cluster free."""
    words = [sys.executable, "-c", _KILLED, str(tmp_path / "far"), two_nodes.address, str(Path(__file__).parent)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as child:
        seen, deadline = list[str](), time.monotonic() + 120
        while len(seen) < 2 and time.monotonic() < deadline and child.poll() is None:
            time.sleep(0.1)
            if (tmp_path / "far" / "runs.db").exists():
                with RunStore(tmp_path / "far" / "runs.db") as store:
                    seen = [info.id for info in store.runs() if info.rounds > 2]
        children = psutil.Process(child.pid).children(recursive=True)
        child.kill()
    assert len(seen) == 2
    assert not psutil.wait_procs(children, timeout=30)[1]
    with RunStore(tmp_path / "far" / "runs.db") as store:
        assert {store.info(run).status for run in seen} == {"interrupted"}
    monkeypatch.setitem(TABLE, "rounds", 60)
    far, nodes = tuned(tmp_path / "far", two_nodes.address, workers=2)
    own, _ = tuned(tmp_path / "own")
    assert {rate: one.score for rate, one in far.items()} == {rate: one.score for rate, one in own.items()}
    assert len(nodes) == 3
    assert set(seen) < set(nodes)


@pytest.mark.slow
def test_seeds_share_the_cluster(two_nodes, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PARLEY_STORE", raising=False)
    (tmp_path / "study.toml").write_text(STUDY)
    far = ["--runtime", "ray", "--set", f'runtime.address="{two_nodes.address}"', "--workers", "2"]
    ids = []
    for more in (["--runtime", "inline"], far):
        with pytest.raises(SystemExit) as ended:
            main(["run", "study.toml", "--seeds", "0-2", "-q", *more])
        out, err = capfd.readouterr()
        assert ended.value.code == 0, err
        ids.append(out.split())
    nodes = set()
    with RunStore() as store:
        for pair in zip(*ids, strict=True):
            curves = [store.curves(run) for run in pair]
            for name, (_, values) in curves[0].items():
                if "seconds" not in name:
                    assert values.tolist() == curves[1][name][1].tolist()
            nodes |= {name for name in curves[1] if name.startswith("busy/")}
            own, theirs = (load_run(store, run).state.tensors for run in pair)
            assert all(torch.equal(value, theirs[name]) for name, value in own.items())
    assert len(nodes) == 2


def test_what_has_no_cluster_is_refused(table):
    with pytest.raises(InputError, match="only the runtime 'ray' has an address, not 'inline'"):
        train(FedAvg(), table, model=mlp(4), rounds=1, runtime="inline", address="auto")
    with pytest.raises(InputError, match=r"Ray cannot be reached at nowhere.invalid:1: "):
        train(FedAvg(), table, model=mlp(4), rounds=1, runtime="ray", address="nowhere.invalid:1")
    with pytest.raises(InputError, match=r"address is host:port or auto, not 'ray://head:10001'"):
        train(FedAvg(), table, model=mlp(4), rounds=1, runtime="ray", address="ray://head:10001")


@pytest.mark.slow
def test_nothing_is_left_behind(table):
    """A Ray of this machine's own ends with the run."""
    before = {process.pid for process in psutil.process_iter()}
    run = train(FedAvg(lr=0.1, batch=4), table, model=mlp(4), rounds=1, runtime="ray", workers=1)
    assert run.status == "finished"
    left = [p for p in psutil.process_iter(["name"]) if p.pid not in before and "ray" in (p.info["name"] or "")]
    _, alive = psutil.wait_procs(left, timeout=20)
    assert not alive
