"""Statements that a study makes, true or not, with the numbers they rest on."""

from __future__ import annotations

import math
from dataclasses import replace

import parley as pl

Check = pl.conformance.Check
at_most = pl.conformance.at_most


def at_least(name: str, measured: float, limit: float) -> Check:
    """Passes where measured >= limit; NaN never does."""
    return Check(name, float(measured), float(limit), bool(measured >= limit), ">=")


def near(name: str, measured: float, expected: float, *, relative: float = 0.0, absolute: float = 0.0) -> Check:
    """Passes where |measured - expected| <= max(relative |expected|, absolute)."""
    close = math.isclose(measured, expected, rel_tol=0.0, abs_tol=max(relative * abs(expected), absolute))
    within = f"{100 * relative:.3g}%" if relative * abs(expected) >= absolute else f"{absolute:.3g}"
    return Check(name, float(measured), float(expected), close, f"= ± {within}")


def holds(name: str, passed: bool, measured: float | str, expected: float | str, relation: str = "=") -> Check:
    """Any other statement, judged by the caller."""
    return Check(name, measured, expected, bool(passed), relation)


def unchecked(check: Check) -> Check:
    """The same statement where the scale is too small for it: it is measured and shown, and decides nothing."""
    return replace(check, passed=None)
