"""Conformance: every method against its exact fixed point and its exact special cases (docs/conformance.md).

    from parley.conformance import conformance, check_rule
    checks = conformance("scaffold")            # or conformance() for all of them
    checks = conformance(MyMethod(lr=0.1))      # your own method, by its `promise`
    checks = check_rule(MyRule())               # an update rule from elsewhere
    checks = check_trainer(train, Optimum())    # a whole trainer from elsewhere
    checks = check_channel(MyChannel(0.1))      # a channel, by what it promises

`parley conformance` prints the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from parley.algorithms import algorithms
from parley.algorithms.protocol import Algorithm
from parley.conformance import boosting_oracles, boosting_problems, members, problem, quadratics, reference
from parley.conformance.analysis_cases import analyses
from parley.conformance.boosting_cases import functional, functional_cohorts
from parley.conformance.case import TOLERANCE, Case
from parley.conformance.channel_checks import check_channel, load_channel
from parley.conformance.check import Check, at_most
from parley.conformance.distilled_cases import distilled, distilled_cohorts
from parley.conformance.equivalences import equivalences
from parley.conformance.fixed_points import corrected, extrapolated, family, normalised, parts, shared
from parley.conformance.kernel_cases import regression
from parley.conformance.methods import method_cases, refusal
from parley.conformance.ntk_cases import tangent
from parley.conformance.partial_cohorts import partial
from parley.conformance.personal_cases import personal, wrapped
from parley.conformance.printed import table
from parley.conformance.promises import Averaged, Optimum, OwnOptimum, Promise, Surrogate
from parley.conformance.rules import UpdateRule, check_rule, check_trainer, check_update, load_method
from parley.conformance.statistics_cases import statistics
from parley.conformance.tct_cases import convexified
from parley.conformance.tree_cases import tree_cohorts, trees
from parley.core.errors import InputError, nearest

__all__ = [
    "RUNTIMES",
    "TOLERANCE",
    "Averaged",
    "Case",
    "Check",
    "Optimum",
    "OwnOptimum",
    "Promise",
    "Surrogate",
    "UpdateRule",
    "at_most",
    "boosting_oracles",
    "boosting_problems",
    "cases",
    "check_channel",
    "check_rule",
    "check_trainer",
    "check_update",
    "conformance",
    "load_channel",
    "load_method",
    "members",
    "method_cases",
    "planned",
    "problem",
    "quadratics",
    "reference",
    "refusal",
    "table",
]

RUNTIMES = ("inline", "stacked")
_LISTS: tuple[Callable[[], list[Case]], ...] = (
    family,
    corrected,
    normalised,
    extrapolated,
    parts,
    shared,
    equivalences,
    regression,
    personal,
    wrapped,
    partial,
    trees,
    tree_cohorts,
    functional,
    functional_cohorts,
    distilled,
    distilled_cohorts,
    tangent,
    convexified,
    statistics,
    analyses,
)


def cases(method: str | Algorithm | None = None) -> list[Case]:
    """The cases of a method, or of all of them; your own method is checked against its `promise`."""
    if isinstance(method, Algorithm):
        return method_cases(method)
    matching = [case for some in _LISTS for case in some()]
    if method is None:
        return matching
    chosen = [case for case in matching if case.method == method]
    if not chosen and method in algorithms:
        raise InputError(f"nothing is recorded of '{method}'; hold it against a promise with check_rule.")
    if not chosen:
        raise InputError(f"unknown algorithm '{method}': {nearest(method, {case.method for case in matching})}")
    return chosen


def planned(method: str | Algorithm | None = None, runtimes: Sequence[str] = RUNTIMES) -> list[tuple[Case, str]]:
    """The cases and the runtimes to check them on: all but 'stacked' for methods that work client by client."""
    plan = [(case, runtime) for case in cases(method) for runtime in runtimes if case.stackable or runtime != "stacked"]
    if not plan:
        name = method.title if isinstance(method, Algorithm) else method
        raise InputError(f"'{name}' works client by client, so there is nothing to check on 'stacked'; use 'inline'.")
    return plan


def conformance(method: str | Algorithm | None = None, runtimes: Sequence[str] = RUNTIMES) -> Iterator[Check]:
    """Check after check, as they are made."""
    return (case.check(runtime) for case, runtime in planned(method, runtimes))
