"""Memory shared between processes: what is put is got, however often it grows and is used again."""

import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.runtimes.arena import Arena, dumps, loads

DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.complex64]


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 60), max_size=3)), max_size=12))
def test_a_reader_sees_what_was_written(parts):
    writer = Arena()
    reader = Arena(os.dup(writer.descriptor))
    values = [
        (torch.randn(shape, generator=torch.Generator().manual_seed(n)) * 9).to(t) for n, (t, shape) in enumerate(parts)
    ]
    for _ in range(2):
        writer.rewind()
        refs = [writer.put(value) for value in values]
        for ref, value in zip(refs, values, strict=True):
            got = reader.get(ref)
            assert torch.equal(got, value)
            assert got.dtype == value.dtype
            assert not value.numel() or got.data_ptr() % 64 == 0
    writer.close()
    reader.close()
    reader.close()


def test_views_outlive_growth_and_see_new_writes():
    writer = Arena()
    reader = Arena(os.dup(writer.descriptor))
    first = reader.get(writer.put(torch.ones(10)))
    big = writer.put(torch.arange(2**19, dtype=torch.float64))  # beyond the first megabyte: both map it anew
    assert torch.equal(first, torch.ones(10))
    assert reader.get(big)[-1] == 2**19 - 1
    writer.rewind()
    writer.put(torch.zeros(10))
    assert torch.equal(first, torch.zeros(10))  # a view: copy it if it is to stay
    size = os.fstat(writer.descriptor).st_size
    for _ in range(50):
        writer.rewind()
        writer.put(torch.ones(2**18, dtype=torch.float64))
    assert os.fstat(writer.descriptor).st_size == size
    writer.close()
    assert torch.equal(first[:1], torch.ones(1).float() * first[0])
    reader.close()


def test_strided_tensors_are_put_as_they_look():
    arena = Arena()
    base = torch.arange(24.0).view(4, 6)
    for value in (base.T, base[:, 2], base[:1].expand(3, 6), base[1::2], torch.tensor(5.0)):
        assert torch.equal(arena.get(arena.put(value)), value)
    arena.close()


def test_objects_travel_with_their_tensors_in_the_arena():
    arena = Arena()
    big, small = torch.randn(100, 10, generator=torch.Generator().manual_seed(0)), torch.ones(3)
    leaf = torch.ones(100, requires_grad=True)
    thing = {
        "a": big,
        "again": big,
        "small": small,
        "leaf": leaf,
        "f": lambda x: x + big.sum(),
        "m": torch.nn.Linear(40, 40),
    }
    data = dumps(thing, arena)
    assert len(data) < 15_000  # the layer's own weights are in it, the large tensor is not
    back = loads(data, arena)
    assert torch.equal(back["a"], big)
    assert back["a"].data_ptr() == back["again"].data_ptr()
    assert torch.equal(back["small"], small)
    assert back["leaf"].requires_grad
    assert back["f"](1.0) == thing["f"](1.0)
    assert torch.equal(back["m"].weight, thing["m"].weight)
    arena.close()
    with pytest.raises(OSError):
        os.fstat(arena.descriptor)
