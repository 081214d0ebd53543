"""Checkpoints: what changed is written, what is needed stays, and a growing state costs what it grows by."""

from pathlib import Path

import pytest
import torch

from parley.algorithms.exchange import Reply, ask, exchange
from parley.algorithms.protocol import Algorithm, Learned
from parley.core.errors import InputError
from parley.core.message import Message, State
from parley.data import Federation
from parley.store import checkpoints as module
from parley.store.checkpoints import Checkpoints
from parley.store.runs import RunStore
from parley.study.train import train


def same(a: State, b: State) -> None:
    assert a.scalars == b.scalars
    assert list(a.tensors) == list(b.tensors)
    assert all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)


def test_states_come_back_and_share_what_they_share(tmp_path: Path):
    x, y = torch.randn(3, generator=torch.Generator().manual_seed(0)), torch.ones(2, dtype=torch.int64)
    last, best = State({"a/x": x, "y": y, "none": torch.empty(0)}, {"n": 3, "s": "t"}), State({"b": x})
    first = Checkpoints(tmp_path)
    manifest = first.save(4, {"last": last, "best": best})
    states = Checkpoints(tmp_path).load(manifest)
    same(states["last"], last)
    same(states["best"], best)
    assert states["last"].tensors["a/x"] is states["best"].tensors["b"]


def test_only_new_tensors_are_written_and_unneeded_files_go(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    kept, moving = torch.ones(1000), torch.zeros(10)
    first = checkpoints.save(1, {"last": State({"kept": kept, "moving": moving})})
    checkpoints.committed(first)
    second = checkpoints.save(2, {"last": State({"kept": kept, "moving": moving + 1})})
    assert (tmp_path / "state-00000002.safetensors").stat().st_size < 300
    checkpoints.committed(second)
    third = checkpoints.save(3, {"last": State({"kept": kept, "moving": moving + 2})})
    same(Checkpoints(tmp_path).load(second)["last"], State({"kept": kept, "moving": moving + 1}))  # not committed yet
    checkpoints.committed(third)  # the files of the one before stay
    same(Checkpoints(tmp_path).load(second)["last"], State({"kept": kept, "moving": moving + 1}))
    checkpoints.committed(third)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state-00000001.safetensors", "state-00000003.safetensors"]
    # Nothing new, nothing written; also after a resume.
    resumed = Checkpoints(tmp_path)
    state = resumed.load(third)["last"]
    assert resumed.save(4, {"last": state}) == third
    assert not (tmp_path / "state-00000004.safetensors").exists()


def test_missing_and_damaged_files_are_told(tmp_path: Path):
    checkpoints = Checkpoints(tmp_path)
    manifest = checkpoints.save(1, {"last": State({"x": torch.ones(5)})})
    file = tmp_path / "state-00000001.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-3])
    with pytest.raises(InputError, match="is damaged"):
        Checkpoints(tmp_path).load(manifest)
    file.unlink()
    with pytest.raises(InputError, match="is missing"):
        Checkpoints(tmp_path).load(manifest)


class Untrained(Learned):
    def outputs(self, message, memory, x, before=None):
        return self.task.predictor(self.task.initial())(x)


class Growing(Algorithm):
    """A state that gains a tensor a round, like an ensemble."""

    def init(self, task, key) -> State:
        return State.of(learners={})

    def round(self, task, state, cohort, number, key):
        replies = yield ask(self.client, dict.fromkeys(cohort.ids, Message()))
        return State({**state.tensors, f"learners/{number}": replies.mean_change("fitted")["x"]})

    @exchange()
    def client(self, task, message, memory, data, context) -> Reply:
        return Reply(Message.of(fitted={"x": torch.randn(500, generator=context.key.torch())}))

    def learned(self, task):
        return Untrained(task)


def test_a_growing_state_costs_what_it_grows_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: list[int] = []
    write = module.write_atomically

    def counted(path: Path, data: bytes, **options: bool) -> None:
        written.append(len(data))
        write(path, data, **options)

    monkeypatch.setattr(module, "write_atomically", counted)
    federation = Federation.from_arrays(
        {"a": (torch.ones(2, 1), torch.ones(2)), "b": (torch.ones(2, 1), torch.ones(2))}
    )
    rounds = 30
    with RunStore(tmp_path / "runs.db") as store:
        run = train(
            Growing(), federation, model=lambda: torch.nn.Linear(1, 1), rounds=rounds, store=store, checkpoint=0.0
        )
        assert len(written) == rounds
        assert max(written) < 1.2 * 2000 + 400
        folder = store.folder(run.id)
        assert sum(p.stat().st_size for p in folder.glob("state-*")) < rounds * 2600
        found = store.checkpoint(run.id)
        assert found is not None
        same(Checkpoints(folder).load(found[1])["last"], run.state)
