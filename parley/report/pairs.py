"""Is one method better than another, or was it luck? Paired tests over seeds that both were trained with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from parley.core.text import printable
from parley.report.groups import Group
from parley.report.same_data import same_data
from parley.study.seeds import SeedMean

FEWEST = 6
"""With fewer seeds the signs alone cannot be rarer by chance than 1 in 20: of n differences all have one sign with
probability 2 / 2^n."""
SIGNIFICANT = 0.05
"""Corrected p-values below are shown in bold."""
_FLIPS = 9_999
"""Sign flips tried where there are more; up to 13 seeds all of them are."""
_MOST_TOLD = 5


@dataclass(frozen=True)
class Pair:
    """Two groups, seed by seed: the mean difference of their last values (first minus second), and how likely so large
    a one would be if the two were alike."""

    first: str
    second: str
    seeds: tuple[int, ...]
    """Those that both have, on the same data."""
    difference: SeedMean
    """With its 95% interval."""
    t: float
    """Two-sided p-value of the paired t-test, which takes the differences to be normal."""
    flips: float
    """Two-sided p-value of the sign-flip permutation test, which takes them to be symmetric."""
    corrected: float = np.nan
    """The t-test's p-value by Holm's rule for all pairs that were tested together."""


def paired(groups: Sequence[Group], metric: str, against: str | None = None) -> list[Pair]:
    """Every pair of groups (or each with the one called `against`) that share at least two seeds and their data."""
    pairs = [pair for pair in combinations(groups, 2) if against is None or against in (pair[0].label, pair[1].label)]
    results = [_pair(*pair, metric) for pair in pairs]
    tested = [pair for pair in results if pair is not None]
    corrected = holm([pair.t for pair in tested])
    return [replace(pair, corrected=p) for pair, p in zip(tested, corrected, strict=True)]


def _pair(first: Group, second: Group, metric: str) -> Pair | None:
    ours, theirs = ({run.seed: run for run in group.runs if run.seed is not None} for group in (first, second))
    seeds = [seed for seed in ours if seed in theirs and same_data(ours[seed].config, theirs[seed].config)]
    if len(seeds) < 2:
        return None
    difference = SeedMean.of([ours[seed].last(metric) - theirs[seed].last(metric) for seed in seeds])
    t, flips = p_values(difference.seeds)
    return Pair(first.label, second.label, tuple(seeds), difference, t, flips)


def p_values(differences: Sequence[float]) -> tuple[float, float]:
    """Of the paired t-test and of the sign-flip permutation test, both two-sided, against a mean of zero."""
    from scipy import stats

    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2 or not np.isfinite(values).all():
        return np.nan, np.nan
    if not values.any():
        return 1.0, 1.0
    if np.ptp(values) == 0:  # always exactly the same: t is infinite
        t = 0.0
    else:
        t = float(stats.ttest_1samp(values, 0.0).pvalue)
    flipped = stats.permutation_test(
        (values, np.zeros_like(values)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_FLIPS,
        rng=np.random.default_rng(0),
    )
    return t, float(flipped.pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the k-th smallest of m counts m - k + 1 times, and never less than one before it."""
    order = np.argsort(p)
    corrected, largest = [np.nan] * len(p), 0.0
    known = int(np.sum(~np.isnan(p)))
    for rank, which in enumerate(order[:known]):
        largest = max(largest, min(1.0, (known - rank) * p[which]))
        corrected[which] = largest
    return corrected


def about(pairs: Sequence[Pair], groups: Sequence[Group]) -> str:
    """What the tests can and cannot say here, in a sentence or two."""
    if not pairs:
        if len(groups) < 2:
            return ""
        return "No paired tests: no two of them were trained with two seeds in common on the same data (--seeds 0-4)."
    fewest = min(len(pair.seeds) for pair in pairs)
    words = [
        "p: paired t-test over equal seeds; Holm: corrected for all pairs; flips: sign-flip permutation test, which "
        "does not need normal differences."
    ]
    if fewest < FEWEST:
        words.append(
            f"Too few seeds for the latter: with {fewest} it cannot fall below {2 / 2**fewest:.2g}; "
            f"train at least {FEWEST}."
        )
    tested = {name for pair in pairs for name in (pair.first, pair.second)}
    rounds = {group.label: group.rounds for group in groups if group.label in tested}
    if len(set(rounds.values())) > 1:
        listed = ", ".join(f"{printable(name)} {count}" for name, count in list(rounds.items())[:_MOST_TOLD])
        more = f" and {len(rounds) - _MOST_TOLD} more" if len(rounds) > _MOST_TOLD else ""
        words.append(f"They were not trained for equally many rounds: {listed}{more}.")
    return " ".join(words)
