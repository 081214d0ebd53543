"""The wire format: safetensors with the scalars as JSON in its metadata. Nothing is ever unpickled.

`wire_size` gives the exact length of `encode(message)` without making the bytes, so that a simulation counts what a
deployment would send.
"""

import json
import math
from functools import lru_cache
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor

from parley.core.errors import WireError
from parley.core.form import Form
from parley.core.message import Message, Payload, Scalar
from parley.core.tree import Schema, aligned, schema

LIMIT = 2 * 1024**3
"""Default upper limit of a message in bytes."""

_PREFIX = 8  # a safetensors file begins with the length of its header, 8 bytes
_VERSION = 1
_BITS = 4096  # Python reads no decimal numbers that are much longer
_DTYPES = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
})  # fmt: skip

P = TypeVar("P", bound=Payload)


def encode(payload: Payload) -> bytes:
    """The payload as bytes; refuses what the other side would refuse."""
    _check_names(schema(payload.tensors))
    tensors = {name: value.detach().contiguous() for name, value in payload.tensors.items()}
    data = safetensors.save(_unshared(tensors), metadata={"parley": _scalars_text(payload.scalars)})
    return _in_order(data, list(tensors))


def decode(data: bytes, kind: type[P] = Message, *, limit: int = LIMIT, like: Form | None = None) -> P:  # type: ignore[assignment]
    """The payload in `data`, or a WireError that says what is wrong with it.

    `like`: the tensors that must be there, exactly: names, dtypes and shapes.
    """
    if len(data) > limit:
        raise WireError(f"a message of {len(data)} bytes is over the limit of {limit}.")
    if len(data) < _PREFIX or int.from_bytes(data[:_PREFIX], "little") > len(data) - _PREFIX:
        raise WireError(f"{len(data)} bytes are not a message: the header is cut short.")
    try:
        tensors: dict[str, Tensor] = safetensors.load(data)
        header = json.loads(data[_PREFIX : _PREFIX + int.from_bytes(data[:_PREFIX], "little")])
        body = json.loads(header.pop("__metadata__")["parley"])
        tensors = {name: tensors[name] for name in header}
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError, RuntimeError, MemoryError) as error:
        raise WireError(f"{len(data)} bytes are not a message: {type(error).__name__} ({error}).") from None
    scalars = _checked_scalars(body)
    _check_names(schema(tensors))
    if like is not None:
        like.check(tensors)
    return kind({name: aligned(value) for name, value in tensors.items()}, scalars)


def _in_order(data: bytes, names: list[str]) -> bytes:
    """The same with the tensors named in this order, which `decode` keeps.

    What is computed from all tensors (a norm, one long vector) must not depend on whether they have travelled.
    """
    end = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
    header = json.loads(data[_PREFIX:end])
    if list(header)[1:] == names:
        return data
    ordered = {name: header[name] for name in ("__metadata__", *names)}
    text = json.dumps(ordered, separators=(",", ":"), ensure_ascii=False).encode()
    return data[:_PREFIX] + text.ljust(end - _PREFIX) + data[end:]


def check_payload(payload: Payload) -> Schema:
    """Raise a WireError if it could not be sent; its schema otherwise."""
    for name, value in payload.tensors.items():
        if not isinstance(value, Tensor):
            raise WireError(f"'{name}' is a {type(value).__name__} where a tensor was expected.")
        if value.layout is not torch.strided or value.device.type == "meta":
            raise WireError(f"tensor '{name}' is sparse or has no values, which messages cannot carry.")
    form = schema(payload.tensors)
    _known_names(form)
    if payload.scalars:
        _check_scalars(payload.scalars)
    return form


def wire_size(payload: Payload, form: Schema | None = None) -> int:
    """len(encode(payload)), exactly, without encoding it; `form`: the schema of its tensors, if it is at hand."""
    header, body = _layout(schema(payload.tensors) if form is None else form)
    metadata = _metadata_length(_scalars_text(payload.scalars))
    unpadded = header + metadata + (1 if header > 2 else 0)  # a comma, if there are tensors
    return _PREFIX + math.ceil(unpadded / 8) * 8 + body


@lru_cache(maxsize=4096)
def _metadata_length(text: str) -> int:
    return len(f'"__metadata__":{{"parley":{json.dumps(text, ensure_ascii=False)}}}'.encode())


@lru_cache(maxsize=4096)
def _layout(names: Schema) -> tuple[int, int]:
    """Length of the header without metadata and padding, and of the tensors, for such a payload."""
    _check_names(names)
    data = safetensors.save({name: torch.empty(shape, dtype=dtype) for name, dtype, shape in names})
    length = int.from_bytes(data[:_PREFIX], "little")
    return len(data[_PREFIX : _PREFIX + length].rstrip(b" ")), len(data) - _PREFIX - length


@lru_cache(maxsize=4096)
def _known_names(names: Schema) -> None:
    _check_names(names)


def _check_names(names: Schema) -> None:
    for name, dtype, _ in names:
        if not isinstance(name, str):
            raise WireError(f"a tensor is called {name!r}; names are texts.")
        if dtype not in _DTYPES:
            raise WireError(f"tensor '{name}' has dtype {dtype}, which messages cannot carry.")
        if name == "__metadata__":
            raise WireError("a tensor cannot be called '__metadata__', where messages keep their scalars; rename it.")


def _scalars_text(scalars: dict[str, Scalar]) -> str:
    if not scalars:
        return f'{{"v":{_VERSION},"scalars":{{}}}}'
    _check_scalars(scalars)
    return json.dumps({"v": _VERSION, "scalars": scalars}, separators=(",", ":"))


def _checked_scalars(body: object) -> dict[str, Scalar]:
    if not isinstance(body, dict) or body.get("v") != _VERSION or not isinstance(body.get("scalars"), dict):
        raise WireError(f"a message of another version than {_VERSION} was received.")
    scalars: dict[str, Scalar] = body["scalars"]
    _check_scalars(scalars)
    return scalars


def _check_scalars(scalars: dict[str, Scalar]) -> None:
    for name, value in scalars.items():
        if not isinstance(name, str):
            raise WireError(f"a scalar is called {name!r}; names are texts.")
        known = isinstance(value, bool | int | float | str)
        if not known or (isinstance(value, float) and not math.isfinite(value)):
            raise WireError(f"scalar '{name}' is neither a finite number, a truth value nor a text.")
        if isinstance(value, int) and value.bit_length() > _BITS:
            raise WireError(f"scalar '{name}' is a whole number of more than {_BITS} bits.")


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """safetensors refuses tensors that share memory; copy those that do."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        pointer = value.untyped_storage().data_ptr()
        result[name] = value.clone() if pointer in seen and value.numel() else value
        seen.add(pointer)
    return result
