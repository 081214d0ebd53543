"""MultiNLI by genre (Williams et al. 2018): does the premise entail the hypothesis?"""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.key import Key
from parley.data.client import ClientData
from parley.data.dataset import Dataset
from parley.data.fetch import Remote, cache_dir
from parley.data.formats import read_lines, readable
from parley.data.pretrained import token_pairs
from parley.data.sets.base import dataset
from parley.data.tokens import next_tokens

CLASSES = ("entailment", "neutral", "contradiction")
PAD, SEPARATOR, FIRST_WORD = 0, 1, 2
WORDS = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[^\sa-z0-9]")
SUBSET = "multinli/multinli_10k.tsv.gz"
ARCHIVE = Remote(
    "multinli/multinli_1.0.zip",
    ("https://cims.nyu.edu/~sbowman/multinli/multinli_1.0.zip",),
    "sha256:049f507b9e36b1fcb756cfd5aeb3b7a0cfcb84bf023793652987f7e7e0957822",
    226.9,
    {
        f"multinli_1.0/multinli_1.0_{part}.jsonl": f"multinli/multinli_1.0_{part}.jsonl"
        for part in ("train", "dev_matched")
    },
)
Pair = tuple[str, str, str, str]
"""Genre, label, premise, hypothesis."""


@dataset(
    "multinli",
    source="https://cims.nyu.edu/~sbowman/multinli/",
    license="OANC and CC BY-SA 3.0 / CC BY 3.0, by genre",
    files=(ARCHIVE,),
    substitute=SUBSET,
)
def multinli(
    length: int = 64,
    vocabulary: int = 8192,
    test_fraction: float = 0.2,
    targets: Literal["classes", "next-token"] = "classes",
    tokenizer: str | None = None,
) -> Dataset:
    """Sentence pairs by genre: entailment, neutral or contradiction; natural clients are the genres.

    The official files (.jsonl, or .txt) give the training set and, as test set, the matched development set. The
    10,071-pair subset `multinli_10k.tsv.gz` is used where they are missing; a fixed random `test_fraction` of it is
    the test set. For more clients than genres use `Natural(shards=k)`.

    Tokens: text in lower case, split into words (with an apostrophe ending, "don't") and single other characters;
    a token's id is 2 + crc32(token) mod (vocabulary - 2). A sample is the premise (cut to 5/8 of `length`), id 1, the
    hypothesis, cut and padded with 0 to `length`. With `tokenizer`, the folder or hub name of a language model's
    weights, the tokens and their layout are that model's own and `vocabulary` does not count.

    `targets="next-token"` is language modelling: the target of each position is the token that follows. Partitioners
    that look at labels still see the classes.
    """
    if length < 4 or vocabulary < 3 or not 0.0 < test_fraction < 1.0:
        raise InputError("multinli needs length >= 4, vocabulary >= 3 and test_fraction between 0 and 1.")
    if targets not in ("classes", "next-token"):
        raise InputError(f"multinli's targets are 'classes' or 'next-token', not '{targets}'.")
    train, test = _pairs(test_fraction)
    genres = tuple(sorted({pair[0] for pair in train}))
    test = [pair for pair in test if pair[0] in genres]
    x, padding, vocabulary = _tokens([*train, *test], length, vocabulary, tokenizer)
    labels = torch.tensor([CLASSES.index(label) for _, label, _, _ in [*train, *test]], dtype=torch.int64)
    groups = np.array([genres.index(genre) for genre, _, _, _ in [*train, *test]], np.int64)
    y, border = next_tokens(x, padding) if targets == "next-token" else labels, len(train)
    classes = CLASSES if targets == "classes" else ()
    info = multinli.info((length,), len(classes) or vocabulary, "text", classes, vocabulary)
    return Dataset(
        info,
        x[:border],
        y[:border],
        ClientData(x[border:], y[border:]),
        groups[:border],
        genres,
        groups[border:],
        strata=labels[:border].numpy(),
    )


def tokenise(text: str, vocabulary: int) -> list[int]:
    """Hashed token ids, the same on every machine."""
    return [_word_id(word, vocabulary) for word in WORDS.findall(text.lower())]


@lru_cache(maxsize=100_000)
def _word_id(word: str, vocabulary: int) -> int:
    return FIRST_WORD + zlib.crc32(word.encode()) % (vocabulary - FIRST_WORD)


def _tokens(pairs: list[Pair], length: int, vocabulary: int, tokenizer: str | None) -> tuple[Tensor, int, int]:
    """Ids [n, length], the id of padding, and how many ids there are."""
    if tokenizer is not None:
        return token_pairs(tokenizer, [(premise, hypothesis) for _, _, premise, hypothesis in pairs], length)
    x = torch.full((len(pairs), length), PAD, dtype=torch.int64)
    for row, (_, _, premise, hypothesis) in enumerate(pairs):
        first = tokenise(premise, vocabulary)[: length * 5 // 8]
        ids = [*first, SEPARATOR, *tokenise(hypothesis, vocabulary)][:length]
        x[row, : len(ids)] = torch.tensor(ids)
    return x, PAD, vocabulary


def _official(part: str) -> Path | None:
    files = (cache_dir() / f"multinli/multinli_1.0_{part}.{suffix}" for suffix in ("jsonl", "txt"))
    return next((file for file in files if file.is_file()), None)


def _read_official(file: Path) -> Iterator[Pair]:
    """Pairs of an official file; those without a gold label ('-') are left out, as its authors advise."""
    lines = read_lines(file)
    with readable(file, "MultiNLI"):
        if file.suffix == ".jsonl":
            rows: Iterable[dict[str, str]] = (json.loads(line) for line in lines if line)
        else:
            rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        for row in rows:
            if row["gold_label"] in CLASSES:
                yield row["genre"], row["gold_label"], row["sentence1"], row["sentence2"]


def _pairs(test_fraction: float) -> tuple[list[Pair], list[Pair]]:
    """(train, test) from the official files, or from the subset where one of them is missing."""
    parts = ("train", "dev_matched")
    files = [file for file in map(_official, parts) if file]
    if len(files) == 2:
        train, test = (list(_read_official(file)) for file in files)
        return train, test
    if not (cache_dir() / SUBSET).is_file():
        missing = next(part for part in parts if _official(part) is None)
        multinli.locate(f"multinli/multinli_1.0_{missing}.jsonl")  # raises, saying how to get it
    return _subset(cache_dir() / SUBSET, test_fraction)


def _subset(file: Path, test_fraction: float) -> tuple[list[Pair], list[Pair]]:
    with readable(file, "MultiNLI"):
        rows = csv.DictReader(read_lines(file), delimiter="\t", quoting=csv.QUOTE_NONE)
        pairs = [(row["genre"], row["label"], row["premise"], row["hypothesis"]) for row in rows]
        if any(label not in CLASSES for _, label, _, _ in pairs):
            raise ValueError("a label is none of " + ", ".join(CLASSES))
    held = set(Key(0).fold("multinli").numpy().permutation(len(pairs))[: round(test_fraction * len(pairs))].tolist())
    return [p for i, p in enumerate(pairs) if i not in held], [p for i, p in enumerate(pairs) if i in held]
