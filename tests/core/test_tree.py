"""Operations on trees: against plain arithmetic, and never in place."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parley.core import tree
from parley.core.errors import InputError
from parley.core.message import Memory, Message, State


def random_tree(seed: int, dtype: torch.dtype = torch.float64) -> tree.Tree:
    random = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(3, 2, generator=random, dtype=dtype),
        "b": torch.randn((), generator=random, dtype=dtype),
        "none": torch.empty(0, dtype=dtype),
    }


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(-2, 2), min_size=1, max_size=5))
def test_a_weighted_sum_is_one_and_changes_no_summand(weights: list[float]):
    trees = [random_tree(seed) for seed in range(len(weights))]
    kept = [tree.clone(t) for t in trees]
    total = tree.weighted_sum(trees, weights)
    for name in ("w", "b"):
        expected = sum(weight * t[name] for weight, t in zip(weights, trees, strict=True))
        torch.testing.assert_close(total[name], torch.as_tensor(expected), rtol=1e-12, atol=1e-12)
    assert total["none"].shape == (0,)
    assert all(torch.equal(t[n], k[n]) for t, k in zip(trees, kept, strict=True) for n in t)


def test_a_weighted_sum_keeps_the_largest_counter_and_its_order():
    trees = [{"count": torch.tensor(value), "x": torch.tensor(float(value))} for value in (3, 7, 5)]
    total = tree.weighted_sum(trees, [0.2, 0.3, 0.5])
    assert total["count"] == 7
    assert total["count"].dtype == torch.int64
    trees[1]["count"].add_(1)
    assert total["count"] == 7
    # Folded in the order given: ((a w_a) + b w_b) + c w_c, bit for bit.
    floats = [random_tree(seed, torch.float32)["w"] for seed in range(3)]
    by_hand = (floats[0] * 0.2).add(floats[1], alpha=0.3).add(floats[2], alpha=0.5)
    assert torch.equal(tree.weighted_sum([{"w": f} for f in floats], [0.2, 0.3, 0.5])["w"], by_hand)
    with pytest.raises(ValueError):
        tree.weighted_sum(trees, [1.0])
    assert tree.weighted_sum([], []) == {}


def test_arithmetic_returns_new_trees():
    a, b = random_tree(0), random_tree(1)
    before = tree.clone(a)
    results = [tree.add(a, b, -0.5), tree.subtract(a, b), tree.scale(a, 3.0), tree.zeros_like(a)]
    expected = [a["w"] - 0.5 * b["w"], a["w"] - b["w"], 3 * a["w"], 0 * a["w"]]
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(result["w"], wanted)
        result["w"].fill_(7)
    copy = tree.clone(a)
    copy["w"].fill_(7)
    assert all(torch.equal(a[name], before[name]) for name in a)
    assert tree.detach({"x": torch.ones(2, requires_grad=True)})["x"].requires_grad is False


def test_norm_bytes_schema_and_finiteness():
    t = {"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]]), "n": torch.zeros(2, dtype=torch.int64)}
    assert tree.norm(t) == 5
    assert tree.nbytes(t) == 4 + 4 + 16
    assert tree.schema(t)[2] == ("n", torch.int64, torch.Size([2]))
    assert hash(tree.schema(t)) == hash(tree.schema(tree.clone(t)))
    assert tree.is_finite(t)
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not tree.is_finite({**t, "bad": torch.tensor([0.0, bad])})


def test_aligned_copies_only_what_is_not():
    base = torch.arange(100.0)
    assert tree.aligned(base) is base
    for view in (base[1:], base.view(10, 10).T, base[::2]):
        copy = tree.aligned(view)
        assert torch.equal(copy, view)
        assert copy.is_contiguous()
        assert copy.data_ptr() % 64 == 0


def test_payloads_group_their_tensors_by_name():
    message = Message.of(model={"w": torch.ones(1), "layer/b": torch.zeros(1)}, c=torch.ones(2), samples=3, tag="x")
    assert list(message["model"]) == ["w", "layer/b"]
    assert list(message["model/layer"]) == ["b"]
    assert message.get("mod") == {}
    assert "mod" not in message
    with pytest.raises(InputError, match="no tree 'mod': did you mean 'model'"):
        message["mod"]
    other = message.replace(model={"v": torch.ones(1)}, samples=4, tag="y")
    assert (list(other["model"]), other.scalars) == (["v"], {"samples": 4, "tag": "y"})
    assert list(message["model"]) == ["w", "layer/b"]
    assert "model" not in message.replace(model={})
    assert message.tensor("c").shape == (2,)
    assert message.number("samples") == 3.0
    with pytest.raises(InputError, match="message has no tensor 'd'"):
        message.tensor("d")
    for name in ("tag", "nothing"):
        with pytest.raises(InputError, match=f"no number '{name}'"):
            message.number(name)
    assert isinstance(State.of(x=torch.ones(1)), State)
    assert isinstance(Memory.of(), Memory)
