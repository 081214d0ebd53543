"""What a library's numbers say: it reaches the method's fixed point, settles elsewhere, or does not settle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from parley.theory.theta import Array
from parley_benchmarks.peers.causes import cause_of
from parley_benchmarks.peers.setting import METHODS, Method, Setting, Weights, problem, weighted

TOLERANCE = 1e-5
"""Of the distance from the start to the fixed point. Some libraries compute in float32 (about 1e-8 here); the methods'
fixed points differ by 3e-4 and more."""
ROUNDS = (3, 75, 150)
"""A few, where causes are told apart even if the method diverges later; enough; and twice that, to see it rest."""

Verdict = Literal["reaches it", "settles elsewhere", "diverges", "does not settle", "not offered", "did not run"]


@dataclass(frozen=True)
class Row:
    """One line of the table, as plain data."""

    library: str
    version: str
    method: str
    variant: str
    setting: str
    weights: str
    verdict: Verdict
    distance: float | None = None
    """From the fixed point after the last round, relative to the start's distance; None where there is no number."""
    where: str = ""
    """Which other known point it is, or how far it moved."""
    cause: str = ""
    """Why, with the file."""
    explained: float | None = None
    """Distance between the library's model and that of the stated cause: after the last round, or after the first
    rounds where it diverges."""
    error: str = ""
    command: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    library: str,
    version: str,
    method: Method,
    variant: str,
    setting: Setting,
    weights: Weights,
    points: Sequence[Sequence[float]],
    rounds: Sequence[int] = ROUNDS,
) -> Row:
    """The verdict on the models after so many `rounds`; the last two tell whether it rests."""
    early, before, last = (np.array(point, dtype=np.float64) for point in points)
    goal = method.point(setting, weights)
    unit = float(np.linalg.norm(problem().start - goal))
    with np.errstate(over="ignore", invalid="ignore"):
        distance, moved = (float(np.linalg.norm(last - other)) / unit for other in (goal, before))
    verdict: Verdict
    if not np.isfinite(distance) or distance > 1e3:
        verdict = "diverges"
    elif distance <= TOLERANCE:
        verdict = "reaches it"
    else:
        verdict = "settles elsewhere" if moved <= TOLERANCE else "does not settle"
    finite = verdict != "diverges"
    where = _where(last, setting, weights, unit) if verdict == "settles elsewhere" else ""
    if verdict == "does not settle":
        where = f"moved by {moved:.1e} in the last {rounds[-1] - rounds[-2]} rounds"
    reason, explained = "", None
    cause = cause_of(library, version, method.name, variant)
    if cause is not None and verdict != "reaches it":
        number, seen = (rounds[-1], last) if finite else (rounds[0], early)
        explained = float(np.linalg.norm(seen - cause.predicts(method, setting, weights, number))) / unit
        reason = f"{cause.sentence} ({cause.file})"
    return Row(
        library,
        version,
        method.name,
        variant,
        setting.name,
        weights,
        verdict,
        distance if finite else None,
        where,
        reason,
        explained,
    )


def _where(x: Array, setting: Setting, weights: Weights, unit: float) -> str:
    """The known point it is, if it is one; else how far it is from the optimum, and FedAvg's from there."""
    points: list[tuple[str, Array]] = []
    by: Weights
    for by, words in (("samples", "weighted by samples"), ("clients", "weighted equally")):
        for other in METHODS.values():
            points.append((f"{other.title}'s point, clients {words}", other.point(setting, by)))
    for name, point in points:
        if np.linalg.norm(x - point) <= TOLERANCE * unit:
            return name
    best = weighted(setting, weights).empirical_minimiser
    off, plain = (
        float(np.linalg.norm(point - best)) / unit for point in (x, METHODS["fedavg"].point(setting, weights))
    )
    return f"{off:.3f} from the optimum (FedAvg's point: {plain:.3f})"
