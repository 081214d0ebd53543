"""Plans: which samples each step sees."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from parley.core.errors import InputError
from parley.core.key import Key
from parley.training.batches import BatchPlan, Work, shuffled

quick = settings(deadline=None, max_examples=60)
samples = st.integers(1, 40)
batches = st.one_of(st.none(), st.integers(1, 45))


def steps_of(plan: BatchPlan, size: int) -> list[list[int]]:
    """The samples of each step."""
    if plan.indices is None:
        return [list(range(size))] * plan.steps
    return [part.tolist() for part in plan.indices.split(list(plan.lengths))]


@quick
@given(samples, batches, st.integers(1, 3), st.integers(0, 100))
def test_every_sample_is_seen_once_per_pass(size: int, batch: int | None, epochs: int, seed: int):
    work = Work(epochs=epochs, batch=batch)
    plan = work.plan(size, Key(seed))
    steps = steps_of(plan, size)
    assert len(steps) == work.count(size) == plan.steps
    each = min(batch or size, size)
    per_pass = -(-size // each)
    for number in range(epochs):
        one = steps[number * per_pass : (number + 1) * per_pass]
        assert [len(step) for step in one[:-1]] == [each] * (per_pass - 1)
        assert sorted(chain(*one)) == list(range(size))


@quick
@given(samples, batches, st.integers(1, 12), st.integers(0, 100))
def test_steps_cut_a_pass_short(size: int, batch: int | None, count: int, seed: int):
    plan = Work(steps=count, batch=batch).plan(size, Key(seed))
    steps = steps_of(plan, size)
    assert len(steps) == count
    per_pass = -(-size // min(batch or size, size))
    for first in range(0, count, per_pass):
        seen = list(chain(*steps[first : first + per_pass]))
        assert len(set(seen)) == len(seen)
    longer = steps_of(Work(steps=count + 5, batch=batch).plan(size, Key(seed)), size)
    assert longer[:count] == steps  # more work begins like less work


def test_passes_come_in_new_orders_and_keys_decide():
    work = Work(epochs=2, batch=4)
    plan = work.plan(20, Key(0))
    assert plan.indices is not None
    assert not torch.equal(plan.indices[:20], plan.indices[20:])
    again, other = work.plan(20, Key(0)).indices, work.plan(20, Key(1)).indices
    assert torch.equal(plan.indices, again)
    assert not torch.equal(plan.indices, other)


def test_independent_steps_draw_without_repeats_and_evenly():
    plan = Work(steps=4000, batch=3, order="independent").plan(7, Key(3))
    steps = np.array(steps_of(plan, 7))
    assert steps.shape == (4000, 3)
    assert all(len(set(step)) == 3 for step in steps.tolist())
    counts = np.bincount(steps.ravel(), minlength=7)
    assert np.all(np.abs(counts - 4000 * 3 / 7) < 4 * np.sqrt(4000 * 3 / 7 * 4 / 7))
    # Consecutive steps are independent: the chance that they share their first sample's presence is (3/7)^2.
    has = (steps == 0).any(1)
    together = (has[1:] & has[:-1]).mean()
    assert abs(together - (3 / 7) ** 2) < 4 * np.sqrt(9 / 49 * 40 / 49 / 3999)


@pytest.mark.parametrize(
    "wrong", [{}, {"steps": 1, "epochs": 1}, {"steps": 0}, {"epochs": 0}, {"steps": 1, "batch": 0}, {"steps": -1}]
)
def test_work_that_makes_no_sense(wrong: dict[str, int]):
    with pytest.raises(InputError):
        Work(**wrong)


@quick
@given(
    st.lists(samples, min_size=1, max_size=5),
    batches,
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["shuffle", "independent"]),
    st.integers(0, 50),
)
def test_a_stack_has_the_plans_of_its_clients(sizes, batch, amount, in_epochs, order, seed):
    """The same samples in every step, each with 1/length; nothing in padding and in steps beyond a client's own."""
    work = (
        Work(epochs=amount, batch=batch, order=order) if in_epochs else Work(steps=3 * amount, batch=batch, order=order)
    )
    keys = [Key(seed).fold(row) for row in range(len(sizes))]
    stack = work.stacked(sizes, keys)
    full = all(batch is None or size <= batch for size in sizes)
    for row, (size, key) in enumerate(zip(sizes, keys, strict=True)):
        plan = work.plan(size, key)
        assert stack.steps[row] == plan.steps
        for number, expected in enumerate(steps_of(plan, size)):
            step = 0 if full else number
            real = stack.weights[row, step] > 0
            assert stack.indices[row, step][real].tolist() == list(expected)
            assert (stack.weights[row, step][real] == 1 / len(expected)).all()
        assert full or not stack.weights[row, plan.steps :].any()
        assert full or not stack.indices[row, plan.steps :].any()


def test_orders_are_uniform_and_unrelated():
    """All 24 orders of four samples equally often, over keys and over passes; neighbours know nothing of each other."""
    for orders in (
        shuffled(np.array([4] * 24_000), [Key(i) for i in range(24_000)], 1)[:, 0],
        shuffled(np.array([4]), [Key(7)], 24_000)[0],
    ):
        numbers = orders @ [64, 16, 4, 1]
        counts = np.unique(numbers, return_counts=True)[1]
        assert len(counts) == 24
        assert stats.chisquare(counts).pvalue > 1e-4
        table = stats.contingency.crosstab(numbers[:-1:2], numbers[1::2]).count
        assert stats.chi2_contingency(table).pvalue > 1e-4


def test_a_longer_neighbour_changes_no_order():
    keys = [Key(i) for i in range(3)]
    together = shuffled(np.array([5, 3, 7]), keys, 2)
    for row, (size, key) in enumerate(zip([5, 3, 7], keys, strict=True)):
        alone = shuffled(np.array([size]), [key], 2)[0]
        assert (together[row, :, :size] == alone).all()
        assert (np.sort(alone, axis=1) == np.arange(size)).all()
