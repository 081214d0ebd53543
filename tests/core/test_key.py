"""Keys: the same path gives the same numbers in every process, different paths different ones."""

import subprocess
import sys

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core.key import Key, fold_all
from parley.training.stack import KeyStack

paths = st.lists(st.one_of(st.integers(), st.text(max_size=4)), min_size=1, max_size=3).map(tuple)


def test_the_same_path_gives_the_same_numbers_in_another_process():
    code = (
        "from parley.core.key import Key; k = Key(7).fold('round', 3).fold('client', 'a', 0);"
        "print(k.digest.hex(), k.seed, k.numpy().integers(2**62), int(k.torch().initial_seed()))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    key = Key(7).fold("round", 3).fold("client", "a", 0)
    assert other == [key.digest.hex(), str(key.seed), str(key.numpy().integers(2**62)), str(key.torch().initial_seed())]


@settings(deadline=None, max_examples=200)
@given(paths, paths)
def test_paths_lead_to_the_same_place_only_if_they_are_the_same(a: tuple[str | int, ...], b: tuple[str | int, ...]):
    assert (Key(0).fold(*a) == Key(0).fold(*b)) == (a == b)


@settings(deadline=None, max_examples=200)
@given(paths, st.text(max_size=4))
def test_keys_of_many_names_or_many_keys_are_those_of_one_fold_each(path: tuple[str | int, ...], name: str):
    key = Key(1)
    assert key.children(*path)(name) == key.fold(*path, name)
    assert fold_all([key, Key(2)], *path) == (key.fold(*path), Key(2).fold(*path))


def test_numbers_and_texts_that_print_alike_are_different_steps():
    key = Key(0)
    different = [
        key.fold(1),
        key.fold("1"),
        key.fold("a", "b"),
        key.fold("ab"),
        key.fold("a").fold("b"),
        key.fold("", "ab"),
    ]
    different += [key.fold("\x1e1"), key.fold("a\x1fb")]
    assert len({k.digest for k in different}) == len(different)
    assert key.fold(np.int64(3)) == key.fold(3)  # type: ignore[arg-type]


def test_generators_are_fresh_and_leave_the_global_state_alone():
    before = torch.random.get_rng_state()
    key = Key(1)
    assert np.array_equal(key.numpy().random(5), key.numpy().random(5))
    first, second = torch.rand(5, generator=key.torch()), torch.rand(5, generator=key.torch())
    assert torch.equal(first, second)
    assert torch.equal(before, torch.random.get_rng_state())
    assert 0 <= key.seed < 2**63


def test_neighbouring_keys_are_independent():
    """Means over many neighbouring keys behave like means of independent draws, and so do their correlations."""
    draws = np.array([Key(0).fold("round", r).numpy().standard_normal(200) for r in range(200)])
    assert abs(draws.mean()) < 4 / np.sqrt(draws.size)
    correlations = np.corrcoef(draws)[np.triu_indices(200, 1)]
    assert abs(correlations.mean()) < 4 / np.sqrt(correlations.size * 200)
    assert abs(correlations.std() - 1 / np.sqrt(200)) < 0.003


def test_keys_compare_and_stacks_of_keys_fold_alike():
    assert Key(3) == Key(3)
    assert Key(3) != Key(4)
    assert len({Key(3), Key(3), Key(4)}) == 2
    stack = KeyStack((Key(0), Key(1))).fold("batches", 2)
    assert stack.keys == (Key(0).fold("batches", 2), Key(1).fold("batches", 2))
