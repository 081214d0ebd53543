"""Clients' memories: in RAM while they fit, on disk otherwise, and never ahead of the checkpoint."""

import errno
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.errors import InputError
from parley.core.message import Memory
from parley.core.wire import encode
from parley.store.memories import Memories


def memory(value: float) -> Memory:
    return Memory.of(x=torch.full((100,), value), note=str(value))


def value(kept: Memory) -> float | None:
    return float(kept.tensor("x")[0]) if kept.tensors else None


def versions(memories: Memories) -> list[tuple[str, int]]:
    """(client, round) of what the index knows."""
    index = memories._file._index
    return index.db.execute("SELECT client, round FROM versions ORDER BY client, round").fetchall() if index else []


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
        assert held <= budget
        assert len(versions(memories)) <= len(wanted)  # no old versions pile up
        assert {client for client in "abcdef" if client in memories} == set(wanted)
    folder = memories._file._index.path.parent if memories._file.used else None
    memories.close()
    assert folder is None or not folder.exists()


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
    assert versions(memories) == [("a", 1), ("a", 3), ("b", 1)]

    again = Memories(tmp_path)
    again.resume(1)
    assert (value(again["a"]), value(again["b"])) == (1, 10)
    assert versions(again) == [("a", 1), ("b", 1)]

    again.accept(2, {"a": memory(2)})
    again.save()
    again.committed()
    assert versions(again) == [("a", 1), ("a", 2), ("b", 1)]  # those of the checkpoint before stay too
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


def test_what_a_run_without_any_checkpoint_left_behind_does_not_count(tmp_path: Path):
    memories = Memories(tmp_path, budget=0)
    memories.accept(1, {"a": memory(1), "b": memory(1)})  # spilled; killed before the first checkpoint
    again = Memories(tmp_path, budget=0)
    assert [value(again[c]) for c in "ab"] == [None, None]
    again.accept(1, {"a": memory(2)})
    assert [value(again[c]) for c in "ab"] == [2, None]


def test_an_interrupt_while_writing_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    memories = Memories(tmp_path)
    memories.accept(1, {"a": memory(1), "b": memory(2)})

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("parley.store.memory_file.MemoryFile._put", interrupted)
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


def test_nothing_is_made_on_disk_for_methods_without_memories(tmp_path: Path):
    memories = Memories(tmp_path / "memory")
    memories.accept(1, {})
    memories.save()
    memories.committed()
    memories.resume(1)
    assert not (tmp_path / "memory").exists()


def test_the_file_holds_one_version_per_client_and_those_since_the_checkpoint_before(tmp_path: Path):
    memories, one = Memories(tmp_path, budget=0), len(encode(memory(10))) + 24 + 64  # a head; multiples of 64
    for number in range(1, 30):
        memories.accept(number, {str(i): memory(number) for i in range(number % 3, 12, 3)})
        memories.save()
        memories.committed()
        assert (tmp_path / "records").stat().st_size <= (12 + 4 + 4) * one
    assert {value(memories[str(i)]) for i in range(12)} == {27, 28, 29}


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 300), max_size=4), min_size=1, max_size=12),
    st.integers(0, 11),
    st.integers(0, 11),
    st.sampled_from([0, 2000]),
)
def test_killed_at_any_round_and_resumed(tmp_path_factory, rounds: list[dict[str, int]], checkpoint, end, budget):
    """Memories of all sizes, a checkpoint after one round, death after another: what the checkpoint had is there."""
    folder = tmp_path_factory.mktemp("memory")
    checkpoint, end = min(checkpoint, len(rounds)), min(max(checkpoint, end), len(rounds))

    def play(memories: Memories, first: int, last: int) -> None:
        for number in range(first, last + 1):
            accepted = rounds[number - 1].items()
            memories.accept(number, {c: Memory.of(x=torch.full((n + 1,), float(number))) for c, n in accepted})

    def expected(last: int) -> dict[str, tuple[int, int]]:
        return {c: (number, n + 1) for number in range(1, last + 1) for c, n in rounds[number - 1].items()}

    def found(memories: Memories) -> dict[str, tuple[int, int]]:
        kept = {client: memories[client].tensors for client in "abcdef" if client in memories}
        assert all(bool((tree["x"] == tree["x"][0]).all()) for tree in kept.values())
        return {client: (int(tree["x"][0]), len(tree["x"])) for client, tree in kept.items()}

    memories = Memories(folder, budget)
    play(memories, 1, checkpoint)
    memories.save()
    memories.committed()
    play(memories, checkpoint + 1, end)
    again = Memories(folder, budget)
    again.resume(checkpoint)
    assert found(again) == expected(checkpoint)
    play(again, checkpoint + 1, len(rounds))
    again.save()
    assert found(again) == expected(len(rounds))
    again.committed()
    assert found(again) == expected(len(rounds))


def test_a_reader_sees_its_round_or_is_told_that_it_is_gone(tmp_path: Path):
    memories = Memories(tmp_path, budget=0)
    memories.accept(1, {"a": memory(1)})
    memories.save()
    memories.committed()
    reader = Memories(tmp_path, until=1)
    memories.accept(2, {"a": memory(2), "b": memory(2)})  # spilled, not yet valid
    assert (value(reader["a"]), value(reader["b"])) == (1, None)
    memories.save()
    memories.committed()
    memories.accept(3, {"a": memory(3)})
    assert (value(reader["a"]), value(reader["b"])) == (1, None)  # the checkpoint before stays readable
    memories.save()
    memories.committed()
    with pytest.raises(InputError, match="gone on since the memory of client 'a'"):
        reader["a"]
    assert value(Memories(tmp_path, until=2)["a"]) == 2
    assert value(Memories(tmp_path, until=3)["a"]) == 3


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("parley.store.memory_file.os.pwrite", full)
    with pytest.raises(InputError, match=r"No space left on device.*make room and resume"):
        Memories(tmp_path, budget=0).accept(1, {"a": memory(1)})
