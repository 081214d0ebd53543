"""What each channel promises: its size, its form, that it is right on average, that it contracts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from parley.channels import channels
from parley.channels.base import Chain, Channel
from parley.channels.ef21 import ef21
from parley.channels.packing import pack, packed_size, unpack
from parley.channels.projection import hadamard, projection
from parley.channels.quantise import fedcom, fedpaq, qsgd
from parley.channels.random_k import random_k
from parley.channels.shuffle import shuffle
from parley.channels.sign import sign
from parley.channels.top_k import largest, top_k
from parley.core.context import Context
from parley.core.errors import InputError, WireError
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Message
from parley.core.wire import decode, encode, wire_size
from parley.privacy.clip import clip
from tests.channels.conftest import Line, message, vector

UNBIASED = [random_k(0.3), projection(0.3), fedcom(), fedpaq(3), *(qsgd(b) for b in range(1, 9)), qsgd(4, "l2")]
CONTRACTIVE = [top_k(0.3, False), sign(False), sign(False, "message"), top_k(1.0, False)]
OTHERS = [top_k(0.1), sign(), random_k(0.2, True), projection(0.2, True), ef21(), clip(1.0)]
CHAINS = [
    ef21() | top_k(0.2), top_k(0.3) | qsgd(4), random_k(0.3) | qsgd(3), projection(0.3) | qsgd(2), clip(2.0) | fedcom(),
    top_k(0.3) | clip(1.0), random_k(0.5) | clip(1.0), top_k(0.3, False) | sign(False), ef21() | sign(),
]  # fmt: skip
VECTORS = arrays(np.float64, st.integers(4, 70), elements=st.floats(-1e3, 1e3, allow_subnormal=False))


def test_every_channel_is_tried_here():
    tried = {type(one) for one in (*UNBIASED, *CONTRACTIVE, *OTHERS, shuffle())}
    ours = {channels[name] for name in channels if channels[name].__module__.startswith("parley.channels.")}
    elsewhere = {channels[name] for name in channels if "noise" in name or "adaptive" in name or "secure" in name}
    assert ours - elsewhere <= tried


@pytest.mark.parametrize("up", [*UNBIASED, *CONTRACTIVE, *OTHERS, *CHAINS], ids=str)
@given(values=VECTORS, dtype=st.sampled_from([torch.float64, torch.float32]), seed=st.integers(0, 9))
@settings(max_examples=12, deadline=None)
def test_what_is_sent_has_the_stated_form_and_size(up: Channel | Chain, values: np.ndarray, dtype: torch.dtype, seed):
    given_message = message(torch.from_numpy(values).to(dtype))
    if any(stage.sensitivity is not None for stage in getattr(up, "stages", (up,))):
        given_message = given_message.replace(k={}, buffers={})
        given_message = Message(given_message.tensors)
    line = Line.of(up)
    for _ in range(2):
        sent, arrived = line.carry(given_message, seed)
        form = Form.like(given_message.tensors)
        for _, stage, trees in line.channels._stages("client"):
            form = stage.transmitted(form, trees)
        assert form == Form.like(sent.tensors)
        assert wire_size(sent) == len(encode(sent))
        assert Form.like(arrived.tensors) == Form.like(given_message.tensors)
        assert arrived.scalars == given_message.scalars
        assert torch.equal(arrived.tensors["buffers/n"], torch.tensor([3])) if "buffers" in given_message else True
        again = decode(encode(sent))
        assert all(torch.equal(again.tensors[name], value) for name, value in sent.tensors.items())


@pytest.mark.parametrize("up", [*UNBIASED, random_k(0.5) | qsgd(4), projection(0.5) | fedcom()], ids=str)
def test_unbiased_and_within_the_stated_variance(up: Channel | Chain):
    x = torch.randn(13, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 3
    many = 500
    got = torch.stack([vector(Line.of(up).carry(message(x), number)[1]) for number in range(many)])
    assert up.unbiased
    error = (got.mean(0) - x).abs()
    assert bool((error <= 4.8 * got.std(0) / many**0.5 + 1e-12).all())
    if isinstance(up, Channel):
        variance = (got - x).square().sum(1).mean() / x.square().sum()
        assert variance <= up.variance(len(x)) * 1.2


@pytest.mark.parametrize("up", CONTRACTIVE, ids=str)
@given(values=VECTORS)
@settings(max_examples=40, deadline=None)
def test_contracts_by_the_stated_factor(up: Channel, values: np.ndarray):
    x = torch.from_numpy(values)
    got = vector(Line.of(up).carry(message(x))[1])
    delta = up.contraction(len(x))
    assert (got - x).square().sum() <= (1 - delta) * x.square().sum() * (1 + 1e-9)


@pytest.mark.parametrize("up", [random_k(0.3, True), projection(0.3, True)], ids=str)
def test_random_ones_contract_in_expectation(up: Channel):
    x = torch.randn(16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    lost = [(vector(Line.of(up).carry(message(x), n)[1]) - x).square().sum() for n in range(400)]
    share = torch.stack(lost) / x.square().sum()
    assert share.mean() == pytest.approx(1 - up.contraction(16), abs=4 * float(share.std()) / 400**0.5)


def test_sizes_in_bytes():
    x = torch.randn(1000)
    body = {}
    for name, up in (("qsgd", qsgd(4, scope="message")), ("sign", sign(scope="message")), ("k", random_k(0.01)),
                     ("top", top_k(0.01)), ("three", qsgd(3, scope="message")), ("fedcom", fedcom())):  # fmt: skip
        sent = Line.of(up).carry(message(x))[0]
        body[name] = sum(v.numel() * v.element_size() for n, v in sent.tensors.items() if not n.startswith("buffers"))
    assert body == {"qsgd": 504, "sign": 129, "k": 40, "top": 80, "three": 379, "fedcom": 1016}


@given(st.integers(1, 8).flatmap(lambda b: st.tuples(st.just(b), st.lists(st.integers(0, 2**b - 1), max_size=41))))
@settings(deadline=None)
def test_packing_is_exact(case):
    bits, codes = case
    packed = pack(torch.tensor(codes, dtype=torch.uint8), bits)
    assert packed.dtype == torch.uint8
    assert len(packed) == packed_size(len(codes), bits) == -(-len(codes) * bits // 8)
    assert sum(int(byte) << (8 * place) for place, byte in enumerate(packed)) == sum(
        code << (bits * place) for place, code in enumerate(codes)
    )
    assert unpack(packed, len(codes), bits, 2**bits - 1).tolist() == codes


@pytest.mark.parametrize("kind", ["normal", "sparse", "rounded", "sorted"])
@pytest.mark.parametrize("count", [1, 50, 3000, 20000])
def test_the_largest_of_a_long_vector_are_the_largest(kind: str, count: int):
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(0))
    x = {"normal": x, "sparse": x * (x > 3), "rounded": x.round(decimals=1), "sorted": x.sort().values}[kind]
    places = largest(x, count)
    assert len(set(places.tolist())) == count
    assert torch.equal(places, places.sort().values)
    assert torch.equal(x[places].abs().sort().values, x.abs().sort().values[-count:])


@given(st.integers(0, 6).flatmap(lambda k: arrays(np.float64, 2**k, elements=st.floats(-10, 10))))
def test_hadamard_is_orthonormal_and_its_own_inverse(values: np.ndarray):
    x = torch.from_numpy(values)
    turned = hadamard(x)
    assert turned.norm() == pytest.approx(float(x.norm()), abs=1e-9)
    assert torch.allclose(hadamard(turned), x, atol=1e-9)


@given(values=VECTORS, bound=st.floats(0.01, 10))
@settings(max_examples=30, deadline=None)
def test_sensitivity_holds_for_what_the_server_makes_of_it(values: np.ndarray, bound: float):
    x = torch.from_numpy(values)
    for up in (
        clip(bound),
        top_k(0.3) | clip(bound),
        random_k(0.3) | clip(bound),
        projection(0.3) | clip(bound),
        clip(bound) | top_k(0.4, False),
        clip(bound) | sign(False),
    ):
        chain = up if isinstance(up, Chain) else Chain((up,))
        chain.check()
        assert chain.sensitivity == bound
        line = Line.of(up)
        for _ in range(2):
            arrived = line.carry(Message(message(x).replace(buffers={}, k={}).tensors))[1]
            assert vector(arrived).norm() <= bound * (1 + 1e-9)


def test_a_bound_does_not_outlive_what_can_exceed_it():
    for later in (qsgd(4), random_k(0.5), top_k(0.5), sign(), ef21(), fedcom(), projection(0.5)):
        assert (clip(1.0) | later).sensitivity is None
    for earlier in (qsgd(4), sign(), ef21(), fedcom()):
        with pytest.raises(InputError, match="put clip first"):
            (earlier | clip(1.0)).check()
    with pytest.raises(InputError, match="comes twice"):
        (top_k(0.5) | top_k(0.5)).check()


def test_randomness_is_the_clients_of_that_round_and_stage():
    x = torch.randn(40)
    one, same, other = (Line.of(qsgd(4)).carry(message(x), seed)[0] for seed in (0, 0, 1))
    assert encode(one) == encode(same) != encode(other)
    line = Line.of(random_k(0.5) | qsgd(4))
    first, second = (line.channels._stages("client") for _ in range(2))
    assert [number for number, *_ in first] == [number for number, *_ in second] == [0, 1]


def test_shuffling_moves_rows_in_synchrony_and_by_a_secret():
    rows = {"x": torch.arange(12.0).view(6, 2), "y": torch.arange(6)}
    sent, arrived = Line.of(shuffle(), (), ("rows",)).carry(Message.of(rows=rows, other={"z": torch.arange(6)}))
    assert sent.tensors.keys() == arrived.tensors.keys()
    assert torch.equal(arrived["rows"]["x"][:, 0], 2.0 * arrived["rows"]["y"])
    assert sorted(arrived["rows"]["y"].tolist()) == list(range(6))
    assert not torch.equal(arrived["rows"]["y"], torch.arange(6))
    assert torch.equal(arrived["other"]["z"], torch.arange(6))


@pytest.mark.parametrize("up", [*UNBIASED, *CONTRACTIVE, *OTHERS[:-1], *CHAINS[:4]], ids=str)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_hostile_messages_are_refused_or_mean_something_finite(up: Channel | Chain, data: st.DataObject):
    given_message = message(torch.linspace(-1, 1, 24))
    line = Line.of(up)
    sent, _ = line.carry(given_message)
    tensors = dict(sent.tensors)
    for name in data.draw(st.lists(st.sampled_from(sorted(tensors)), min_size=1, max_size=3)):
        kind = data.draw(st.sampled_from(["bytes", "gone", "longer", "dtype", "scalar"]))
        value = tensors.get(name)
        if value is None:
            continue
        if kind == "bytes":
            count = value.numel() * value.element_size()
            raw = data.draw(st.binary(min_size=count, max_size=count))
            tensors[name] = torch.frombuffer(bytearray(raw), dtype=value.dtype).view(value.shape) if count else value
        elif kind == "gone":
            del tensors[name]
        elif kind == "longer":
            tensors[name] = torch.cat([value.reshape(-1), value.reshape(-1)[:1]])
        elif kind == "dtype":
            tensors[name] = value.to(torch.int64)
        else:
            tensors[name] = torch.zeros((), dtype=value.dtype)
    try:
        form = Form.like(given_message.tensors)
        arrival = line.channels.receive(Message(tensors), form, Context.alone(Key(0)), line.server)
    except WireError:
        return
    assert Form.like(arrival.message.tensors) == form
    assert bool(torch.isfinite(vector(arrival.message)).all())


@pytest.mark.parametrize(
    ("up", "name", "value"),
    [
        (top_k(0.5), "top-k/places", torch.tensor([0, 1, 99], dtype=torch.int32)),
        (top_k(0.5), "top-k/places", torch.tensor([-1, 1, 2], dtype=torch.int32)),
        (top_k(0.5), "top-k/places", torch.tensor([1, 1, 2], dtype=torch.int32)),
        (qsgd(4), "qsgd/codes", torch.full((3,), 255, dtype=torch.uint8)),
        (qsgd(4), "qsgd/norms", torch.tensor([-1.0])),
        (qsgd(4), "qsgd/norms", torch.tensor([float("nan")])),
        (fedcom(), "fedcom/ends", torch.tensor([[1.0, -1.0]])),
        (sign(), "sign/sizes", torch.tensor([-1.0])),
    ],
)
def test_what_no_client_sends_is_refused(up: Channel, name: str, value: torch.Tensor):
    line = Line.of(up)
    given_message = Message.of(update={"w": torch.linspace(-1, 1, 6)})
    sent, _ = line.carry(given_message)
    bad = Message(sent.tensors | {name: value})
    with pytest.raises(WireError):
        line.channels.receive(bad, Form.like(given_message.tensors), Context.alone(Key(0)), None)


@pytest.mark.parametrize("value", [0, 1.5, -1])
def test_shares_and_bits_out_of_range(value: float):
    for make in (top_k, random_k, projection):
        with pytest.raises(InputError):
            make(value)
    with pytest.raises(InputError):
        qsgd(9)


def test_empty_and_constant_tensors():
    tree = {"none": torch.zeros(0, 3), "same": torch.full((5,), 2.0), "zero": torch.zeros(4)}
    for up in (*UNBIASED, *CONTRACTIVE, *OTHERS[:-1]):
        arrived = Line.of(up).carry(Message.of(update=tree))[1]
        assert bool(torch.isfinite(vector(arrived)).all())
        nothing = Message.of(update={"none": torch.zeros(0)})
        assert Line.of(up).carry(nothing)[1].tensors.keys() == nothing.tensors.keys()
    for up in (fedcom(), sign(False)):
        assert torch.equal(Line.of(up).carry(Message.of(update=tree))[1]["update"]["same"], tree["same"])
