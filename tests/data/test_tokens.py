"""Next-token targets, and MultiNLI as language modelling and by genre."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import parley.data as data
from parley.core.errors import InputError
from parley.data.tokens import IGNORE, next_tokens
from parley.training.losses import IGNORE as COUNTED_OUT


@settings(deadline=None, max_examples=30)
@given(rows=st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=4))
def test_targets_are_the_tokens_that_follow(rows):
    x = torch.zeros(len(rows), 6, dtype=torch.int64)
    for row, ids in enumerate(rows):
        x[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    y = next_tokens(x, padding=0)
    assert IGNORE == COUNTED_OUT
    for ids, targets in zip(rows, y.tolist(), strict=True):
        assert targets == [*ids[1:], *[IGNORE] * (6 - max(len(ids) - 1, 0))]


@pytest.fixture
def pairs(cache):
    (cache / "multinli").mkdir()
    rows = [
        {"gold_label": label, "genre": genre, "sentence1": f"{genre} says {label}.", "sentence2": "It does"}
        for genre in ("travel", "slate", "fiction")
        for label in ("neutral", "entailment", "contradiction", "neutral")
    ]
    for part in ("train", "dev_matched"):
        text = "\n".join(map(json.dumps, rows)) + "\n"
        (cache / f"multinli/multinli_1.0_{part}.jsonl").write_text(text)
    return cache


def test_multinli_as_language_modelling(pairs):
    classes, words = data.multinli(length=10, vocabulary=50), data.multinli(10, 50, targets="next-token")
    assert torch.equal(words.x, classes.x)
    assert words.info.outputs == words.info.vocabulary == 50
    assert words.info.classes == ()
    assert torch.equal(words.y, next_tokens(words.x, 0))
    assert torch.equal(words.test.y, next_tokens(words.test.x, 0))
    assert np.array_equal(words.labels(), classes.labels())
    assert len(words.split("shards", clients=2)) == 2
    with pytest.raises(InputError, match="'classes' or 'next-token'"):
        data.multinli(targets="next")


def test_sorted_by_group_gives_each_client_one_genre(pairs):
    pool = data.multinli(length=10, targets="next-token")
    federation = pool.split(data.Sorted(by="group"), clients=3)
    whole = pool.split("natural")
    for number, genre in enumerate(sorted(("travel", "slate", "fiction"))):
        own, natural = federation.client(str(number)), whole.client(genre)
        assert sorted(own.x.tolist()) == sorted(natural.x.tolist())
    with pytest.raises(InputError, match="by must be 'label' or 'group'"):
        data.Sorted(by="genre")
    with pytest.raises(InputError, match="natural clients"):
        data.digits().split(data.Sorted(by="group"), clients=3)


@pytest.mark.parametrize("real", ["multinli/multinli_10k.tsv.gz"], indirect=True)
def test_real_pairs_by_genre(real):
    pool = data.multinli(length=32, vocabulary=512, targets="next-token")
    federation = pool.split(data.Sorted(by="group"), clients=5)
    assert sum(federation.sizes()) == len(pool)
    genres = {tuple(row): genre for row, genre in zip(pool.x.tolist(), pool.groups.tolist(), strict=True)}
    for client in federation.ids:  # ten genres on five clients: each touches few of them
        assert len({genres[tuple(row)] for row in federation.client(client).x.tolist()}) <= 4
    y = federation.client("0").y
    assert ((y == IGNORE) | (y > 0)).all()
