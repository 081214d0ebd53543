"""Conformance: every method against its exact fixed point and its exact special cases (docs/conformance.md).

    from parley.studies.conformance import conformance, check_rule
    checks = conformance("scaffold")            # or conformance() for all of them
    checks = check_rule(MyRule())               # an update rule from elsewhere
    checks = check_trainer(train, Optimum())    # a whole trainer from elsewhere
    checks = check_channel(MyChannel(0.1))      # a channel, by what it promises

`parley conformance` prints the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from parley.algorithms import algorithms
from parley.core.errors import InputError, nearest
from parley.studies.conformance.boosting_cases import functional, functional_cohorts
from parley.studies.conformance.case import TOLERANCE, Case
from parley.studies.conformance.channel_checks import check_channel, load_channel
from parley.studies.conformance.distilled_cases import distilled, distilled_cohorts
from parley.studies.conformance.equivalences import equivalences
from parley.studies.conformance.fixed_points import corrected, extrapolated, family, normalised, parts, shared
from parley.studies.conformance.kernel_cases import regression
from parley.studies.conformance.ntk_cases import tangent
from parley.studies.conformance.partial_cohorts import partial
from parley.studies.conformance.personal_cases import personal, wrapped
from parley.studies.conformance.printed import table
from parley.studies.conformance.promises import Optimum, Promise, Surrogate
from parley.studies.conformance.rules import UpdateRule, check_rule, check_trainer, check_update, load_rule
from parley.studies.conformance.statistics_cases import statistics
from parley.studies.conformance.tct_cases import convexified
from parley.studies.conformance.tree_cases import tree_cohorts, trees
from parley.studies.harness import Check

__all__ = [
    "RUNTIMES",
    "TOLERANCE",
    "Case",
    "Optimum",
    "Promise",
    "Surrogate",
    "UpdateRule",
    "cases",
    "check_channel",
    "check_rule",
    "check_trainer",
    "check_update",
    "conformance",
    "load_channel",
    "load_rule",
    "planned",
    "table",
]  # fmt: skip

RUNTIMES = ("inline", "stacked")
_LISTS: tuple[Callable[[], list[Case]], ...] = (
    family, corrected, normalised, extrapolated, parts, shared, equivalences, regression, personal, wrapped, partial,
    trees, tree_cohorts, functional, functional_cohorts, distilled, distilled_cohorts, tangent, convexified, statistics,
)  # fmt: skip


def cases(method: str | None = None) -> list[Case]:
    """What is said of a method, or of all of them."""
    found = [case for some in _LISTS for case in some()]
    if method is None:
        return found
    chosen = [case for case in found if case.method == method]
    if not chosen and method in algorithms:
        raise InputError(f"nothing is recorded of '{method}'; hold it against a promise with check_rule.")
    if not chosen:
        raise InputError(f"unknown algorithm '{method}': {nearest(method, {case.method for case in found})}")
    return chosen


def planned(method: str | None = None, runtimes: Sequence[str] = RUNTIMES) -> list[tuple[Case, str]]:
    """The cases and the runtimes to check them on: all but 'stacked' for methods that work client by client."""
    plan = [(case, runtime) for case in cases(method) for runtime in runtimes if case.stackable or runtime != "stacked"]
    if not plan:
        raise InputError(f"'{method}' works client by client, so there is nothing to check on 'stacked'; use 'inline'.")
    return plan


def conformance(method: str | None = None, runtimes: Sequence[str] = RUNTIMES) -> Iterator[Check]:
    """Check after check, as they are made."""
    return (case.check(runtime) for case, runtime in planned(method, runtimes))
