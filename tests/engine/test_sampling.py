"""Who takes part: exact sizes, the same in every run, and unbiased where it says so."""

import numpy as np
import pytest
import torch

from parley.algorithms.averaging.local_update import FedAdam, FedAvg
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import ClientData, Federation
from parley.engine.sampling import Sampler
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.models import linear
from parley.study.train import train

SIZES = (1, 2, 5, 10, 20, 40, 3, 7)


def federation(sizes: tuple[int, ...] = SIZES) -> Federation:
    return Federation.from_arrays({f"c{i}": (np.ones((n, 2)), np.ones(n)) for i, n in enumerate(sizes)})


def sampler(seed: int = 0, faults: Faults | None = None, **settings) -> Sampler:
    return Sampler(federation(), Sampling(**settings), faults or Faults(), Key(seed))


def test_everyone_takes_part_in_the_federation_s_order():
    cohort = sampler().draw(1)
    assert cohort.ids == tuple(f"c{i}" for i in range(8))
    np.testing.assert_allclose(cohort.weights, np.array(SIZES) / sum(SIZES))
    np.testing.assert_allclose(sampler(weights="uniform").draw(1).weights, 1 / 8)


@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("scheme", ["without-replacement", "unbiased"])
def test_sizes_are_exact_and_rounds_differ(scheme, weights):
    draw = sampler(size=3, scheme=scheme, weights=weights).draw
    cohorts = [draw(number) for number in range(60)]
    assert all(len(cohort) == len(set(cohort.ids)) == 3 for cohort in cohorts)
    assert all(list(cohort.ids) == sorted(cohort.ids) for cohort in cohorts)
    assert len({cohort.ids for cohort in cohorts}) > 20
    assert [draw(number) for number in range(60)] == cohorts  # a function of the round, not of the calls
    assert sampler(1, size=3, scheme=scheme, weights=weights).draw(0) != cohorts[0]


@pytest.mark.parametrize("availability", [1.0, 0.6])
@pytest.mark.parametrize("weights", ["size", "uniform"])
@pytest.mark.parametrize("scheme", ["with-replacement", "unbiased"])
def test_both_weightings_of_paper_004_are_unbiased(scheme, weights, availability: float):
    """E[w_k 1{k in cohort}] = p_k: Case I (draws by p_k with replacement) and Case II (uniform, w = p_k K / m)."""
    draw = sampler(size=3, scheme=scheme, weights=weights, faults=Faults(availability=availability)).draw
    rounds = 4000
    seen = np.zeros((rounds, 8))
    for number in range(rounds):
        cohort = draw(number)
        shares = cohort.shares(cohort.ids)
        for client, weight in shares.items():
            seen[number, int(client[1:])] = weight
    asked = seen.any(1)  # with few clients available, sometimes nobody is
    seen = seen[asked]
    p = np.array(SIZES) / sum(SIZES) if weights == "size" else np.full(8, 1 / 8)
    error = seen.std(0) / np.sqrt(len(seen))
    assert np.all(np.abs(seen.mean(0) - p) < 4 * error + 1e-12)
    if scheme == "with-replacement":
        np.testing.assert_allclose(seen.sum(1), 1.0)


def test_draws_with_replacement_count_how_often():
    cohorts = [sampler(size=5, scheme="with-replacement").draw(number) for number in range(300)]
    for cohort in cohorts:
        times = np.array(cohort.weights) * 5
        np.testing.assert_allclose(times, np.round(times))
        assert times.sum() == pytest.approx(5)
        assert len(set(cohort.ids)) == len(cohort)
    assert max(max(cohort.weights) for cohort in cohorts) > 0.6  # c5 holds 45% of the samples


def test_cohorts_are_biased_without_correction():
    """The default scheme's weights sum to one over the cohort, and that has a price: large clients count too little."""
    draw = sampler(size=2).draw
    total = np.zeros(8)
    for number in range(3000):
        cohort = draw(number)
        assert sum(cohort.weights) == pytest.approx(1)
        for client, weight in zip(cohort.ids, cohort.weights, strict=True):
            total[int(client[1:])] += weight / 3000
    assert total[5] < 40 / sum(SIZES) - 0.1


def test_only_available_clients_are_asked():
    draw = sampler(size=6, faults=Faults(availability=0.5)).draw
    sizes = np.array([len(draw(number)) for number in range(2000)])
    assert sizes.max() == 6
    # min(6, Binomial(8, 1/2)) has the mean 3.957.
    assert abs(sizes.mean() - 3.957) < 4 * sizes.std() / np.sqrt(2000)
    large = Sampler(
        Federation.from_function(100_000, lambda i: ClientData(torch.ones(1, 1), torch.ones(1)), 1),
        Sampling(50),
        Faults(availability=0.2),
        Key(0),
    )
    assert {len(large.draw(number)) for number in range(20)} == {50}


def absent(who: Sampler, number: int) -> dict[str, str]:
    reason = who.absences(who.draw(number), number)
    return {client: why for client in who.draw(number).ids if reason is not None and (why := reason(client))}


def test_drop_outs_happen_at_their_rate():
    who = sampler(faults=Faults(dropout=0.3))
    gone = [absent(who, number) for number in range(1000)]
    rate = np.mean([len(g) for g in gone]) / 8
    assert abs(rate - 0.3) < 4 * np.sqrt(0.21 / 8000)
    assert gone[7] == absent(who, 7)
    assert all("dropped out" in reason for reason in gone[0].values())
    everyone = sampler()
    assert absent(everyone, 1) == {}


def test_stragglers_are_the_same_clients_each_round():
    who = sampler(faults=Faults(straggling=1.0, patience=1.5))
    gone = absent(who, 1)
    assert gone
    assert len(gone) < 4.5  # never the faster half
    assert all("times as long" in reason for reason in gone.values())
    assert gone == absent(who, 2)
    assert absent(sampler(faults=Faults(straggling=1.0)), 1) == {}
    assert absent(sampler(faults=Faults(patience=1.5)), 1) == {}


def test_rounds_nobody_can_be_asked_or_answers_change_nothing():
    few = federation((3, 4))
    for faults in (Faults(availability=0.2), Faults(dropout=0.7, quorum=0.0)):
        run = train(FedAdam(), few, model=linear(), rounds=12, faults=faults, runtime="inline")
        cohorts = [record.metrics["cohort"].value for record in run.records]
        assert 0 in cohorts
        assert max(cohorts) > 0
        assert float(run.state.tensor("server-t/t")) == sum(size > 0 for size in cohorts)


def test_settings_that_make_no_sense():
    with pytest.raises(InputError, match=r"cohort\.size must be at least 1"):
        Sampling(0)
    with pytest.raises(InputError, match="only 8 clients"):
        train(FedAvg(), federation(), model=linear(), rounds=1, cohort=9)
    for wrong in ({"every": 0}, {"batch": 0}, {"clients": 0}, {"clients": "some"}):
        with pytest.raises(InputError, match="evaluate"):
            Evaluation(**wrong)
