"""Clients' memories: in RAM while they fit, on disk otherwise, and never ahead of the checkpoint."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.message import Memory
from parley.engine.memories import Memories


def memory(value: float) -> Memory:
    return Memory.of(x=torch.full((100,), value), note=str(value))


def value(kept: Memory) -> float | None:
    return float(kept.tensor("x")[0]) if kept.tensors else None


def files(folder: Path) -> list[str]:
    return sorted(path.name.split("@")[1].split(".")[0] for path in folder.glob("*/*.safetensors"))


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcdef"), st.floats(-100, 100), max_size=4), min_size=1, max_size=8),
    st.sampled_from([0, 500, 1000, 10**9]),
)
def test_whatever_the_budget_the_last_accepted_version_counts(rounds: list[dict[str, float]], budget: int):
    memories, wanted = Memories(budget=budget), {}
    for number, accepted in enumerate(rounds, 1):
        memories.accept(number, {client: memory(v) for client, v in accepted.items()})
        wanted |= {client: float(torch.tensor(v)) for client, v in accepted.items()}
        assert {client: value(memories[client]) for client in "abcdef"} == {c: wanted.get(c) for c in "abcdef"}
        held = len(memories._live) * 400
        assert held <= max(budget, 400)  # one may always stay
        assert len(files(memories.folder)) <= len(wanted)  # no old versions pile up
    memories.close()
    assert not memories.folder.exists()


def test_reading_many_keeps_to_the_budget(tmp_path: Path):
    memories = Memories(tmp_path, budget=1000)
    memories.accept(1, {str(i): memory(i) for i in range(50)})
    for i in range(50):
        assert value(memories[str(i)]) == i
        assert len(memories._live) <= 2
    assert memories["nobody"].tensors == {}


def test_versions_become_valid_with_their_checkpoint(tmp_path: Path):
    memories = Memories(tmp_path)
    memories.accept(1, {"a": memory(1), "b": memory(10)})
    memories.save()
    memories.committed()
    memories.accept(2, {"a": memory(2)})
    memories.accept(3, {"a": memory(3)})
    memories.save()  # written, but the checkpoint never came
    assert files(tmp_path) == ["1", "1", "3"]

    again = Memories(tmp_path)
    again.resume(1)
    assert (value(again["a"]), value(again["b"])) == (1, 10)
    assert files(tmp_path) == ["1", "1"]

    again.accept(2, {"a": memory(2)})
    again.save()
    again.committed()
    assert files(tmp_path) == ["1", "2"]
    third = Memories(tmp_path)
    third.resume(2)
    assert (value(third["a"]), value(third["b"])) == (2, 10)
    assert third["a"].scalars == {"note": "2"}


def test_a_spilled_version_is_not_yet_valid(tmp_path: Path):
    memories = Memories(tmp_path, budget=0)
    memories.accept(9, {"a": memory(9), "b": memory(9)})
    memories.save()
    memories.committed()
    memories.accept(10, {"a": memory(10), "b": memory(10), "c": memory(10)})  # spills at once
    assert [value(memories[c]) for c in "abc"] == [10, 10, 10]
    again = Memories(tmp_path)  # the run was killed before its checkpoint
    again.resume(9)
    assert [value(again[c]) for c in "abc"] == [9, 9, None]


def test_an_interrupt_while_writing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    memories = Memories(tmp_path)
    memories.accept(1, {"a": memory(1), "b": memory(2)})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("parley.engine.memories.write_atomically", interrupted)
        with pytest.raises(KeyboardInterrupt):
            memories.save()
    memories.save()
    memories.committed()
    again = Memories(tmp_path)
    again.resume(1)
    assert (value(again["a"]), value(again["b"])) == (1, 2)


def test_memories_are_kept_by_value_under_any_name(tmp_path: Path):
    names = ["a/b", "..", "", "ä\n", "x" * 500]
    memories = Memories(tmp_path, budget=0)
    memories.accept(1, {name: memory(i) for i, name in enumerate(names)})
    assert [value(memories[name]) for name in names] == list(range(len(names)))
    assert all(tmp_path in path.parents for path in tmp_path.rglob("*"))
