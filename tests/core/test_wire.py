"""The wire format: what goes in comes out, its size is known beforehand, and whatever else arrives is refused."""

import json
import math
import pickle
import random
import struct
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import torch as safetensors
from torch import Tensor

from parley.core.errors import WireError
from parley.core.form import Form
from parley.core.message import Memory, Message, Payload, State
from parley.core.wire import decode, encode, wire_size

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
]  # fmt: skip

quick = settings(deadline=None, max_examples=60)
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
names = st.text(max_size=12).filter(lambda name: name != "__metadata__")
scalars = st.one_of(
    st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20)
)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    values = np.random.default_rng(draw(st.integers(0, 2**32))).integers(-100, 100, size=shape)
    return torch.from_numpy(values).to(dtype)


@st.composite
def payloads(draw: st.DrawFn) -> Message:
    return Message(
        draw(st.dictionaries(names, tensors(), max_size=5)),
        draw(st.dictionaries(st.text(max_size=8), scalars, max_size=5)),
    )


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and torch.equal(a[name], b[name])
        for name in a
    )


@quick
@given(payloads())
def test_payloads_come_back_and_their_size_is_known(payload: Message):
    data = encode(payload)
    assert wire_size(payload) == len(data)
    back = decode(data, like=Form.like(payload.tensors))
    assert type(back) is Message
    assert equal(back.tensors, payload.tensors)
    assert back.scalars == payload.scalars
    assert {name: type(value) for name, value in back.scalars.items()} == {
        name: type(value) for name, value in payload.scalars.items()
    }


@pytest.mark.parametrize("kind", [Message, State, Memory, Payload])
def test_the_kind_asked_for_is_the_kind_given(kind: type[Payload]):
    assert type(decode(encode(State.of(x=torch.ones(2))), kind)) is kind


def test_special_numbers_and_bits_survive():
    values = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 5e-324], dtype=torch.float64)
    back = decode(encode(Message({"x": values}, {"tiny": 5e-324, "big": 2**80, "minus": -0.0})))
    assert torch.equal(back.tensors["x"].view(torch.int64), values.view(torch.int64))
    assert back.scalars == {"tiny": 5e-324, "big": 2**80, "minus": 0.0}
    assert math.copysign(1, back.number("minus")) == -1


def test_strided_shared_and_differentiable_tensors_can_be_sent():
    base = torch.arange(12.0).view(3, 4)
    parts = {"a": base, "b": base, "column": base[:, 1], "t": base.T, "wide": base[:1].expand(5, 4)}
    parts["leaf"] = torch.ones(2, requires_grad=True)
    message = Message(parts)
    data = encode(message)
    assert wire_size(message) == len(data)
    back = decode(data)
    assert equal(back.tensors, {name: value.detach() for name, value in parts.items()})
    assert not back.tensors["leaf"].requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8])
def test_decoded_tensors_are_aligned_like_fresh_ones(dtype: torch.dtype):
    """Matrix products round differently on unaligned memory, so a resumed run would not give the same bits."""
    message = Message({f"x{n}": torch.ones(n, dtype=dtype) for n in range(1, 40)})
    for value in decode(encode(message)).tensors.values():
        assert value.data_ptr() % 64 == 0
        value.add_(1)  # and may be changed


@pytest.mark.parametrize(
    "scalar",
    [math.nan, math.inf, [1], {"a": 1}, None, np.float32(1), 1j, b"bytes", 10**5000],
    ids=["nan", "inf", "list", "dict", "none", "float32", "complex", "bytes", "huge"],
)
def test_scalars_the_other_side_would_refuse_are_not_sent(scalar: object):
    payload = Message({}, {"s": scalar})  # type: ignore[dict-item]
    for write in (encode, wire_size):
        with pytest.raises(WireError, match="'s'"):
            write(payload)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.uint16, torch.float8_e4m3fn])
def test_dtypes_that_messages_cannot_carry(dtype: torch.dtype):
    payload = Message({"x": torch.zeros(2).to(dtype)})
    with pytest.raises(WireError, match="dtype"):
        encode(payload)
    with pytest.raises(WireError, match="dtype"):
        wire_size(payload)
    with pytest.raises(WireError, match="dtype"):
        decode(safetensors.save(payload.tensors, {"parley": '{"v":1,"scalars":{}}'}))


def test_a_tensor_cannot_take_the_metadata_s_place():
    with pytest.raises(WireError, match="__metadata__"):
        encode(Message({"__metadata__": torch.ones(1)}))


# -- what arrives from elsewhere ---------------------------------------------------------------------------------------

GOOD = encode(Message({"w": torch.arange(6.0).view(2, 3), "n": torch.ones(2, dtype=torch.int64)}, {"samples": 3}))


def raw(metadata: object, tensors: dict[str, Tensor] | None = None) -> bytes:
    """A safetensors file with any text under `parley`."""
    return safetensors.save(tensors or {"w": torch.ones(2)}, metadata)  # type: ignore[arg-type]


def test_every_truncation_is_refused():
    for length in range(len(GOOD)):
        with pytest.raises(WireError):
            decode(GOOD[:length])
    with pytest.raises(WireError):
        decode(GOOD + b"\0")


def test_every_flipped_bit_of_the_header_is_refused_or_changes_only_names_and_scalars():
    length = int.from_bytes(GOOD[:8], "little")
    original = decode(GOOD)
    for place in range(8 + length):
        for bit in range(8):
            data = bytearray(GOOD)
            data[place] ^= 1 << bit
            try:
                payload = decode(bytes(data))
            except WireError:
                continue
            sizes = sorted(value.numel() * value.element_size() for value in payload.tensors.values())
            assert sizes == sorted(v.numel() * v.element_size() for v in original.tensors.values())


@pytest.mark.parametrize(
    "text",
    [
        '{"v":2,"scalars":{}}', '{"scalars":{}}', "[]", "1", "null", "", "{", '{"v":1}', '{"v":1,"scalars":[]}',
        '{"v":1,"scalars":{"a":NaN}}', '{"v":1,"scalars":{"a":Infinity}}', '{"v":1,"scalars":{"a":1e999}}',
        '{"v":1,"scalars":{"a":[1]}}', '{"v":1,"scalars":{"a":{"b":1}}}', '{"v":1,"scalars":{"a":null}}',
        '{"v":1,"scalars":{"a":' + "1" * 5000 + "}}", '{"v":1,"scalars":' + "[" * 20000 + "]" * 20000 + "}",
    ],
    ids=range(17),
)  # fmt: skip
def test_wrong_scalars_are_refused(text: str):
    with pytest.raises(WireError):
        decode(raw({"parley": text}))


def test_other_files_are_refused():
    for data in (raw(None), raw({"other": "x"}), b"", b"{}", pickle.dumps({"w": [1]}), json.dumps({"w": 1}).encode()):
        with pytest.raises(WireError):
            decode(data)
    with pytest.raises(WireError):  # a header longer than the message, and one that is absurd
        decode(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(WireError):
        decode(struct.pack("<Q", 2) + b"{}")


def test_nothing_is_unpickled(tmp_path):
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (open, (str(tmp_path / "sprung"), "w"))

    with pytest.raises(WireError):
        decode(pickle.dumps(Trap()))
    assert not (tmp_path / "sprung").exists()


def test_messages_over_the_limit_are_refused_unread():
    with pytest.raises(WireError, match="over the limit"):
        decode(GOOD, limit=len(GOOD) - 1)
    assert decode(GOOD, limit=len(GOOD)).scalars == {"samples": 3}


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, "'w' is missing"),
        ({"w": torch.ones(2, 3), "v": torch.ones(1)}, "'v' was not expected"),
        ({"w": torch.ones(3, 2)}, r"\[3, 2\]"),
        ({"w": torch.ones(6)}, r"\[6\]"),
        ({"w": torch.ones(2, 3, dtype=torch.float64)}, "float64"),
    ],
)
def test_a_schema_is_kept_to_the_letter(tensors: dict[str, Tensor], says: str):
    like = Form.like({"w": torch.zeros(2, 3)})
    with pytest.raises(WireError, match=says):
        decode(encode(Message(tensors)), like=like)
    with pytest.raises(WireError, match=says):
        like.check(tensors)
    like.check({"w": torch.ones(2, 3)})


def damage(data: bytes, rng: random.Random) -> bytes:
    """Some way in which bytes arrive broken."""
    result = bytearray(data)
    match rng.randrange(6):
        case 0:
            return rng.randbytes(rng.randrange(300))
        case 1:
            return bytes(result[: rng.randrange(len(result) + 1)])
        case 2:
            for _ in range(rng.randrange(1, 20)):
                result[rng.randrange(len(result))] = rng.randrange(256)
        case 3:
            at = rng.randrange(len(result))
            result[at:at] = rng.randbytes(rng.randrange(1, 50))
        case 4:
            a, b = sorted(rng.randrange(len(result)) for _ in range(2))
            del result[a:b]
        case _:  # a plausible length, then noise
            return struct.pack("<Q", rng.randrange(200)) + b"{" + rng.randbytes(200)
    return bytes(result)


def fuzz(rounds: int, seed: int) -> None:
    rng = random.Random(seed)
    like = Form.like(decode(GOOD).tensors)
    for _ in range(rounds):
        data = damage(GOOD, rng)
        for expected in (None, like):
            try:
                payload = decode(data, like=expected, limit=10**6)
            except WireError:
                continue
            encode(payload)  # whatever was accepted is a message


def test_damaged_bytes_give_a_wire_error_or_a_message():
    fuzz(2000, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_damaged_bytes_at_length(seed: int):
    fuzz(60_000, seed)
