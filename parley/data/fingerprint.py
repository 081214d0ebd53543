"""Digests of data: whether what a run resumes with is what it started with."""

from __future__ import annotations

import json
from dataclasses import asdict
from hashlib import blake2b

from torch import Tensor

from parley.data.client import ClientData, DataInfo

SIZE = 16
_LATER = ("missing", "categories", "levels", "dates")
"""What counts only where it is there: the digests of other data are older."""


def text_digest(*texts: str) -> bytes:
    """Of texts, told apart from their concatenation."""
    return blake2b(json.dumps(texts).encode(), digest_size=SIZE).digest()


def info_digest(info: DataInfo) -> bytes:
    """Of what the data say about themselves."""
    about = {name: value for name, value in asdict(info).items() if value or name not in _LATER}
    return text_digest(json.dumps(about, sort_keys=True))


def tensor_digest(tensor: Tensor) -> bytes:
    """Of shape, dtype and contents."""
    digest = blake2b(f"{tensor.dtype} {tuple(tensor.shape)} ".encode(), digest_size=SIZE)
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).numpy().data)
    return digest.digest()


def data_digest(data: ClientData | None) -> bytes:
    """Of samples; 16 zeros for none."""
    if data is None:
        return bytes(SIZE)
    return blake2b(tensor_digest(data.x) + tensor_digest(data.y), digest_size=SIZE).digest()


class Digests:
    """Digests of tensors, each taken once however often it occurs."""

    def __init__(self) -> None:
        self.known: dict[int, bytes] = {}

    def of(self, tensor: Tensor) -> bytes:
        if id(tensor) not in self.known:
            self.known[id(tensor)] = tensor_digest(tensor)
        return self.known[id(tensor)]
