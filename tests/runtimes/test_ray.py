"""Clients on the workers of real Ray clusters: the bits of inline, and what happens when workers and nodes die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from parley.algorithms.fedals import FedALS
from parley.algorithms.ffgb import FFGB
from parley.algorithms.local_update import FedAvg
from parley.algorithms.ntk_fl import NtkFL
from parley.algorithms.scaffold import Scaffold
from parley.core.errors import InputError
from parley.engine.listeners import Listener
from parley.engine.settings import Evaluation, Faults
from parley.learn.weak import RegressionTree
from parley.models import mlp
from parley.study.statistics import statistics
from parley.study.train import train

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
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
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
    if algorithm.needs_model:
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
        def client(self, task, message, memory, data, context):
            if len(data) == 9:
                raise ValueError("not me")
            return super().client(task, message, memory, data, context)

    run = train(
        Picky(lr=0.1, batch=4), table, model=mlp(4), rounds=1, faults=Faults(quorum=0.1), runtime="ray",
        address=two_nodes.address,
    )  # fmt: skip
    assert [failure.reason[:26] for failure in run.records[-1].failures] == ["raised ValueError: not me "]


def deadly(flag: Path, always: bool) -> FedAvg:
    """The client with 9 samples kills its worker, once or always."""

    class Deadly(FedAvg):
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
        def client(self, task, message, memory, data, context):
            if len(data) == 9:
                time.sleep(1000)
            return super().client(task, message, memory, data, context)

    run = train(
        Slow(lr=0.1, batch=4), table, model=mlp(4), rounds=1, faults=Faults(quorum=0.1, deadline=3.0), runtime="ray",
        address=two_nodes.address,
    )  # fmt: skip
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
            Scaffold(lr=0.05, steps=3, batch=7), table, runtime="ray", address=made.address, listeners=[Unplug(made)],
            **options,
        )  # fmt: skip
    assert not far.failures()
    assert all(torch.equal(value, far.state.tensors[name]) for name, value in plain.state.tensors.items())


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
