"""Statements that are true or not, with the numbers they rest on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """A statement that is true or not, with the numbers it rests on."""

    name: str
    measured: float | str
    expected: float | str
    passed: bool | None
    """None: not checked at this scale."""
    relation: str = "="
    """How measured and expected should compare: `<=`, `>=`, `= ± 1%`."""


def at_most(name: str, measured: float, limit: float) -> Check:
    """Passes where measured <= limit; NaN never does."""
    return Check(name, float(measured), float(limit), bool(measured <= limit), "<=")
