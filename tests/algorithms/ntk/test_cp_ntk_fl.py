"""CP-NTK-FL: NTK-FL on projected inputs, through parties; what the server and the parties really receive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import parley as pl
from parley.algorithms.exchange import disclosed, exchange
from parley.algorithms.ntk.cp_ntk_fl import CpNtkFL, projected_task, projection_matrix
from parley.algorithms.ntk.ntk_fl import NtkFL
from parley.algorithms.parties import SHUFFLER, Shared
from parley.attack.exact import from_jacobian
from parley.core.context import Secrets
from parley.core.errors import InputError, QuorumError
from parley.core.message import Memory
from parley.data import Federation
from parley.engine.listeners import Listener
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.study.train import train

SECRET = bytes(range(16))
PLAIN = NtkFL(times=(5, 20), lr=0.5, upload="dense", tolerance=1e-9)
SEALED = CpNtkFL(times=(5, 20), lr=0.5, upload="dense", tolerance=1e-9, projection=0)
INPUTS = 6


def federation(seed: int = 0, seed_of_projection: bytes | None = None, width: int = 4) -> Federation:
    draw = np.random.default_rng(seed)
    clients = {}
    for i, name in enumerate("abc"):
        x = draw.standard_normal((5 + i, INPUTS))
        clients[name] = (x, (x[:, :3].argmax(1) + i) % 3)
    if seed_of_projection is not None:
        p = projection_matrix(seed_of_projection, INPUTS, width).numpy()
        clients = {name: (x @ p, y) for name, (x, y) in clients.items()}
    return Federation.from_arrays(clients, test_fraction=0.2)


def network(inputs: int = INPUTS, seed: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def trained(method: pl.Algorithm, data: Federation | None = None, **more: Any) -> Run:
    settings = {
        "model": network(),
        "rounds": 2,
        "runtime": "inline",
        "secret": SECRET,
        "evaluation": Evaluation(every=2),
    } | more
    return train(method, data or federation(), **settings)


def secret() -> Shared:
    lasting = Secrets(SECRET, (), "party:key server")
    return Shared(lasting.bytes("projection seed", 32), lasting.bytes("row checks", 32))


def same(a: Run, b: Run, tolerance: float = 1e-10) -> None:
    assert a.state["model"].keys() == b.state["model"].keys()
    for name, value in a.state["model"].items():
        torch.testing.assert_close(value, b.state["model"][name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("upload", ["dense", "factored", "top-k"])
@pytest.mark.parametrize("select", ["clients", "last"])
def test_without_projection_it_is_ntk_fl(upload: str, select: str):
    change = {"upload": upload, "select": select, "density": 1.0}
    runs = trained(replace(PLAIN, **change)), trained(replace(SEALED, **change))
    same(*runs)
    assert runs[0].last("server/t") == runs[1].last("server/t")
    assert float((runs[0].state["model"]["1.weight"] - runs[0].task.initial()["1.weight"]).abs().max()) > 0.01


@pytest.mark.parametrize("change", [{}, {"share": 0.5}, {"upload": "top-k", "density": 0.3}])
def test_with_projection_it_is_ntk_fl_on_projected_inputs(change: dict[str, Any]):
    """By hand: inputs multiplied by P beforehand, and a network that starts as the projected one does."""
    method = replace(SEALED, projection=4, **change)
    run = trained(method)
    by_hand = projected_task(run.task, 4).network
    same(run, trained(replace(PLAIN, **change), federation(0, secret().seed), model=by_hand))
    p = projection_matrix(secret().seed, INPUTS, 4)
    torch.testing.assert_close(p, projection_matrix(secret().seed, INPUTS, 4))
    assert abs(float(projection_matrix(secret().seed, 200, 150).square().mean()) * 200 - 1) < 0.05


def test_planted_mistakes_would_be_seen():
    """Rows of J out of step with those of f and Y, and a projection that is not everybody's."""
    plain = trained(PLAIN)

    class OutOfStep(CpNtkFL):
        def read(self, inner, rows):
            jac, f, y = super().read(inner, rows)
            return jac, f.roll(1, 0), y

    class OwnProjection(CpNtkFL):
        def project(self, task, x, seed):
            return super().project(task, x, bytes([len(x)]) * 32)

    settings = {"times": (5, 20), "lr": 0.5, "upload": "dense", "tolerance": 1e-9}
    with pytest.raises(AssertionError):
        same(plain, trained(OutOfStep(projection=0, **settings)))
    with pytest.raises(AssertionError):
        same(trained(OwnProjection(projection=4, **settings)), trained(replace(SEALED, projection=4)))


class Watch(Listener):
    def __init__(self) -> None:
        self.exchanges: list[Any] = []

    def exchange(self, number, index, asked, sent, replies) -> None:
        self.exchanges.append((asked, dict(sent), dict(replies)))

    def bytes(self, *, before_shuffling: bool = True) -> bytes:
        messages = [
            message
            for asked, sent, replies in self.exchanges
            for message in (*sent.values(), *(() if asked == "shuffle" and before_shuffling else replies.values()))
        ]
        return b"|".join(value.contiguous().numpy().tobytes() for m in messages for value in m.tensors.values())


def test_the_server_sees_neither_seed_nor_inputs_nor_owners():
    watch = Watch()
    run = trained(replace(SEALED, projection=4), listeners=[watch])
    shared, seen = secret(), watch.bytes(before_shuffling=False)
    assert Shared.of(bytes(run.memory("a").tensor("shared").numpy())) == shared
    assert shared.seed not in seen
    assert shared.checks not in seen
    assert "seed" not in run.state.tensors
    p = projection_matrix(shared.seed, INPUTS, 4)
    for name in "abc":
        x = federation().client(name).x
        for row in x:
            assert row.numpy().tobytes() not in seen
        for row in x @ p:
            assert row.numpy().tobytes() not in watch.bytes()
    asked = [asked for asked, _, _ in watch.exchanges]
    first = ["enrol", "deal", "keep", "begin", "client", "shuffle", "losses"]
    assert asked == [*first, "deal", "begin", "client", "shuffle", "losses"]
    for asked, sent, _ in watch.exchanges:
        if asked == "client":
            assert all(set(m.groups()) == {"model"} and "shuffler" in m.tensors for m in sent.values())


def test_reveal_tells_the_server_and_says_so():
    watch = Watch()
    run = trained(replace(SEALED, projection=4, reveal=True), listeners=[watch])
    assert secret().seed in watch.bytes()
    assert bytes(run.state.tensor("seed").numpy()) == secret().seed
    assert disclosed(run.algorithm.exchanges()) == ("inputs", "labels")
    assert disclosed(replace(SEALED, projection=4).exchanges()) == ("labels",)
    same(run, trained(replace(SEALED, projection=4)))


def test_clients_evaluate_and_the_server_cannot():
    digits = pl.data.digits().split("iid", clients=4, seed=0, test_fraction=0.2)
    settings = {"times": (100, 400), "projection": 32, "upload": "factored"}
    hidden, shown = (
        trained(CpNtkFL(**settings, reveal=reveal), digits, model=pl.models.mlp(32)) for reveal in (False, True)
    )
    assert hidden.last("clients/accuracy") > 0.5
    assert shown.last("central/accuracy") == pytest.approx(hidden.last("central/accuracy"), abs=1e-6)
    x = digits.test.x[:5]
    learned, model = hidden.learned, hidden.model()
    assert float(learned.outputs(model, None, x).abs().max()) == 0
    own = learned.outputs(model, hidden.memory(digits.ids[0]), x)
    assert torch.allclose(own, shown.predict(x), atol=1e-5)
    with pytest.raises(InputError, match="projected inputs"):
        learned.module(model, Memory())


def test_a_client_that_colludes_reveals_the_inputs():
    """What docs/cp-ntk.md says: the seed of one client, and the rows of all, are the inputs of all."""
    watch = Watch()
    method = replace(SEALED, projection=INPUTS)
    run = trained(method, listeners=[watch], rounds=1)
    inner = method.inner(run.task)
    rows = next(replies[SHUFFLER].tensor("rows") for asked, _, replies in watch.exchanges if asked == "shuffle")
    from parley.algorithms.parties import unpacked

    jac, _, _ = method.read(inner, unpacked(rows[:, 32:], method.row_form(inner)))
    written = jac.rows()
    z = from_jacobian(written["1.weight"], written["1.bias"], torch.zeros(INPUTS).double())
    x = torch.linalg.solve(
        projection_matrix(Shared.of(bytes(run.memory("a").tensor("shared").numpy())).seed, INPUTS, INPUTS).T, z.T
    ).T
    truth = torch.cat([federation().client(name).x for name in "abc"])
    near = torch.cdist(truth, x).min(1).values
    assert float(near.max()) < 1e-8


@pytest.mark.parametrize("runtime", ["pool", "wire"])
def test_runtimes_agree(runtime: str):
    method = replace(SEALED, projection=4, upload="top-k", density=0.5)
    quiet = Evaluation(central=False, clients="all")
    a, b = (trained(method, runtime=name, workers=1, evaluation=quiet) for name in ("inline", runtime))
    assert all(torch.equal(value, b.state.tensors[name]) for name, value in a.state.tensors.items())
    assert a.last("clients/loss") == b.last("clients/loss")


def test_resume_is_exact(tmp_path):
    method = replace(SEALED, projection=4)
    whole = trained(method, rounds=3, secret=None, store=tmp_path / "whole.db", cohort=2)

    class Stop(Listener):
        def round(self, record) -> None:
            if record.number == 1:
                raise KeyboardInterrupt

    kept = {"store": tmp_path / "runs.db", "checkpoint": 0.0, "cohort": 2, "rounds": 3}
    with pytest.raises(KeyboardInterrupt):
        trained(method, listeners=[Stop()], **kept)
    same(trained(method, resume=True, **kept, secret=None), trained(method, cohort=2, rounds=3), 0.0)
    assert whole.status == "finished"


def test_a_cheating_shuffler_stops_the_run():
    class Cheated(CpNtkFL):
        @exchange(like=CpNtkFL.shuffle)
        def shuffle(self, task, message, memory, context):
            reply = super().shuffle(task, message, memory, context)
            return replace(reply, message=reply.message.replace(rows=reply.message.tensor("rows")[1:]))

    with pytest.raises(QuorumError, match="the shuffler cannot be trusted"):
        trained(Cheated(times=(5,)))


def test_bad_settings_are_a_sentence():
    with pytest.raises(InputError, match="projection must be at least 0"):
        CpNtkFL(projection=-1)
    conv = nn.Sequential(nn.Unflatten(1, (1, INPUTS)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(10, 3)).double()
    with pytest.raises(InputError, match="chains of dense layers"):
        trained(CpNtkFL(times=(5,)), model=conv)
    assert trained(CpNtkFL(times=(5,), upload="dense", projection=0), model=conv).status == "finished"
    assert trained(CpNtkFL(times=(5,), projection=100)).state["model"]["1.weight"].shape == (5, INPUTS)
