"""Parts of a model, and how often to average them."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from parley.algorithms.parts.parts import by_function, by_layers, by_patterns, each_layer
from parley.algorithms.parts.periods import plan_periods
from parley.core.errors import InputError
from parley.core.key import Key
from parley.models import build_module, resnet20


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    return build_module(resnet20(), (3, 32, 32), 10, Key(0))


def size(module: nn.Module, names) -> int:
    return sum(p.numel() for n, p in module.named_parameters() if n in names)


def test_the_papers_split_of_resnet20(resnet):
    phi, h = by_layers(resnet, None, 10)
    assert (phi.label, phi.period, h.label, h.period) == ("phi", 10, "h", 1)
    assert (size(resnet, phi.parameters), size(resnet, h.parameters)) == (292_304, 650)
    assert set(phi.buffers) == {name for name, _ in resnet.named_buffers()}
    assert h.buffers == ()


@pytest.mark.parametrize("count", [1, 4, 8, 12, 16, 20])
def test_the_first_layers_of_table_3(resnet, count):
    parts = by_layers(resnet, count, 10)
    names = {name for part in parts for name in part.parameters}
    assert names == {name for name, _ in resnet.named_parameters()}
    phi = parts[0]
    assert ("blocks.3.shortcut.conv.weight" in phi.parameters) == ("blocks.3.second.conv.weight" in phi.parameters)
    convolutions = [n for n in phi.parameters if n.endswith(("conv.weight", "head.weight")) and "shortcut" not in n]
    assert len(convolutions) == count
    assert len(parts) == (1 if count == 20 else 2)


def test_no_layers_and_too_many(resnet):
    (only,) = by_layers(resnet, 0, 10)
    assert (only.label, only.period) == ("h", 1)
    with pytest.raises(InputError, match="between 0 and 20"):
        by_layers(resnet, 21, 10)


def test_patterns_take_the_first_that_fits(resnet):
    parts = by_patterns(resnet, {"stem.*": 8, "blocks.[012].*": 4, "blocks.*": 2})
    assert [(p.label, p.period) for p in parts] == [("stem.*", 8), ("blocks.[012].*", 4), ("blocks.*", 2), ("rest", 1)]
    assert parts[-1].parameters == ("head.weight", "head.bias")
    for part in parts[:-1]:
        assert all(buffer.startswith(part.label.split(".")[0]) for buffer in part.buffers)
    assert sum(len(part.buffers) for part in parts) == len(list(resnet.named_buffers()))


def test_statistics_follow_their_own_normalisation(resnet):
    shortcuts, rest = sorted(by_patterns(resnet, {"*.shortcut.*": 5}), key=lambda part: part.label)
    assert len(shortcuts.buffers) == 6
    assert all(".shortcut." in name for name in shortcuts.buffers)
    assert rest.period == 1


def test_a_function_of_the_name(resnet):
    parts = by_function(resnet, lambda name: 7 if name.startswith("stem") else 3)
    assert [(part.label, part.period) for part in parts] == [("every 7", 7), ("every 3", 3)]
    for wrong in (0, 1.5, "often"):
        with pytest.raises(InputError, match="split must give a period"):
            by_function(resnet, lambda name, wrong=wrong: wrong)


def test_a_pattern_for_nothing_is_refused(resnet):
    with pytest.raises(InputError, match="'steam"):
        by_patterns(resnet, {"steam.*": 2})


def test_every_layer_a_part(resnet):
    parts = each_layer(resnet)
    assert len(parts) == 20
    assert {part.period for part in parts} == {1}


# -- periods --------------------------------------------------------------------------------------------------------


def cost(periods, rates, sizes) -> float:
    return sum(s * v * T**2 for s, v, T in zip(sizes, rates, periods, strict=True))


def traffic(periods, sizes) -> float:
    return sum(s / T for s, T in zip(sizes, periods, strict=True)) / sum(sizes)


problems = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(st.floats(1e-6, 1e3), min_size=n, max_size=n), st.lists(st.integers(1, 1000), min_size=n, max_size=n)
    )
)


@settings(deadline=None, max_examples=60)
@given(problems, st.floats(0.13, 1.0))
def test_plans_keep_the_budget_and_waste_none(drawn, budget):
    rates, sizes = drawn
    plan = plan_periods(rates, sizes, budget, 8)
    assert set(plan) <= {1, 2, 4, 8}
    assert traffic(plan, sizes) <= budget * (1 + 1e-9)
    for q, period in enumerate(plan):  # no part can be averaged more often
        if period > 1:
            more = [*plan[:q], period // 2, *plan[q + 1 :]]
            assert traffic(more, sizes) > budget * (1 - 1e-9)


@settings(deadline=None, max_examples=60)
@given(problems, st.integers(0, 12))
def test_plans_are_the_best_where_the_last_halving_uses_the_budget_up(drawn, halvings):
    """Gains per cost fall with every halving of a part, so the best ones first are a Lagrangian optimum."""
    rates, sizes = drawn
    order = sorted(product(range(len(rates)), (8, 4, 2)), key=lambda qT: -rates[qT[0]] * qT[1] ** 3)[:halvings]
    periods = [8 >> sum(1 for q, _ in order if q == own) for own in range(len(rates))]
    budget = traffic(periods, sizes) * (1 + 1e-11)
    plan = plan_periods(rates, sizes, budget, 8)
    rivals = [p for p in product((1, 2, 4, 8), repeat=len(rates)) if traffic(p, sizes) <= budget]
    assert cost(plan, rates, sizes) <= min(cost(p, rates, sizes) for p in rivals) * (1 + 1e-9)


def test_periods_follow_the_cube_root_law():
    """T ~ v^(-1/3): a part that moves apart 8 times slower (in squares) is averaged half as often."""
    rates = [8.0**-k for k in range(6)]
    plan = plan_periods(rates, [1] * 6, sum(2.0**-k for k in range(6)) / 6, 32)
    assert plan == [1, 2, 4, 8, 16, 32]


def test_the_whole_budget_means_every_round():
    assert plan_periods([0.0, 1.0, 5.0], [3, 4, 5], 1.0, 32) == [1, 1, 1]
    assert plan_periods([1.0, 1.0], [1, 1], 1 / 32, 32) == [32, 32]
    assert np.isclose(traffic(plan_periods([1.0, 0.0], [1, 1], 0.51, 8), [1, 1]), 0.5 + 1 / 16, atol=0.1)
