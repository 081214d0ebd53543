"""An attack on one release gives a lower bound on epsilon, which must stay below the accounted one.

Half of a thousand canaries take part, each along a coordinate of its own; the attacker sees the server's model and says
of each whether it was there. Clopper and Pearson's intervals of both rates give, with 99% confidence, a lower bound:
epsilon >= log((TPR - delta) / FPR).
"""

import math

import pytest
import torch
from scipy import stats

from parley.privacy.accounting import Mechanism
from parley.privacy.plan import PrivacyPlan

CANARIES, CONFIDENCE, DELTA = 2000, 0.99, 1e-5


def lower_bound(noisy: torch.Tensor, threshold: float) -> float:
    """Of epsilon, from the attacker's guesses: those in even places took part, the others did not."""
    guesses = noisy > threshold
    hits, false = int(guesses[0::2].sum()), int(guesses[1::2].sum())
    trials, miss = len(noisy) // 2, (1 - CONFIDENCE) / 2
    true_rate = stats.beta.ppf(miss, hits, trials - hits + 1) if hits else 0.0
    false_rate = stats.beta.ppf(1 - miss, false + 1, trials - false) if false < trials else 1.0
    return math.log((true_rate - DELTA) / false_rate) if true_rate > DELTA else 0.0


def attacked(canaries, multiplier: float) -> float:
    """The model's coordinates in units of the bound; the threshold is where a single guess tells most."""
    there = list(range(0, CANARIES, 2))
    run = canaries(there, CANARIES, noise_multiplier=multiplier, clip=1.0, delta=DELTA, accountant="rdp")
    sums = run.state["model"]["w"].double() * len(there)
    return lower_bound(sums, 0.5 + 1.5 * multiplier)


@pytest.mark.parametrize("multiplier", [0.7, 1.0, 2.0])
def test_the_attack_stays_below_what_is_accounted_for(canaries, multiplier):
    found, accounted = attacked(canaries, multiplier), Mechanism(1.0, multiplier, DELTA).epsilon(1)
    assert 0.15 * accounted < found < accounted  # it has power, and not too much


def test_the_attack_finds_noise_that_is_too_small(canaries, monkeypatch):
    """A fifth of the noise that is accounted for: the lower bound exceeds the promise."""
    monkeypatch.setattr(PrivacyPlan, "sum_multiplier", property(lambda self: self.multiplier / 5))
    there = list(range(0, CANARIES, 2))
    run = canaries(there, CANARIES, noise_multiplier=1.5, clip=1.0, delta=DELTA, accountant="rdp")
    sums = run.state["model"]["w"].double() * len(there)
    assert lower_bound(sums, 0.8) > Mechanism(1.0, 1.5, DELTA).epsilon(1)
