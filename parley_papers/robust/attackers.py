"""Accuracy against the share of attackers, for the rules of robust folding and the attacks that can be simulated.

Every rule is told the same f, the most attackers that Krum allows in a cohort of 20, whatever the share is: a server
does not know it. The columns without attackers show what a rule costs where nobody lies, for clients that are alike
(alpha = 100) and that differ (alpha = 0.1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

import parley as pl
from parley_papers.figures.line_panels import LinePanel, line_panels
from parley_papers.harness import Check, Scale, StudyContext, StudyResult, at_least, at_most, claims, study

_CLIENTS, _F = 20, 8
_PLAIN = pl.FedAvg(lr=0.2, epochs=2, batch=16)
_MOMENTUM = replace(_PLAIN, lr=0.02, options={"momentum": 0.9}, keep=True)
_ARMS: dict[str, tuple[pl.FedAvg, pl.Robust | None]] = {
    "mean": (_PLAIN, None),
    "median": (_PLAIN, pl.Robust("median", f=_F)),
    "trimmed mean": (_PLAIN, pl.Robust("trimmed-mean", f=_F)),
    "geometric median": (_PLAIN, pl.Robust("geometric-median", f=_F)),
    "multi-Krum": (_PLAIN, pl.Robust("multi-krum", f=_F)),
    "centred clipping": (_PLAIN, pl.Robust("centred-clip", f=_F, radius=0.5, iterations=3)),
    "mixing, median": (_PLAIN, pl.Robust("median", f=_F, mixing=True)),
    "Krum": (_PLAIN, pl.Robust("krum", f=_F)),
    "mixing, median, momentum": (_MOMENTUM, pl.Robust("median", f=_F, mixing=True)),
}
_ATTACKS: dict[str, float | None] = {
    "sign-flip": 5.0,
    "noise": None,
    "scaled": None,
    "a-little": None,
    "label-flip": None,
}
_ALPHAS = (0.1, 1.0, 100.0)


@dataclass(frozen=True)
class _Size:
    """How large a scale is."""

    arms: tuple[str, ...]
    attacks: tuple[str, ...]
    shares: tuple[float, ...]
    rounds: int
    seeds: int


_SIZES: dict[Scale, _Size] = {
    "smoke": _Size(("mean", "median"), ("sign-flip", "label-flip"), (0.4,), 3, 1),
    "cpu": _Size(tuple(_ARMS), tuple(_ATTACKS), (0.1, 0.2, 0.4), 20, 2),
}
Cell = tuple[str, str, float, float, int]
"""Arm, attack, share of attackers, alpha, seed."""


@study(
    "robust/attackers",
    scales={
        "smoke": "2 rules, 2 attacks, 1 share, 3 rounds",
        "cpu": "9 rules, 5 attacks, shares up to 40%, 20 rounds, 2 seeds",
    },
)
def attackers(scale: Scale, context: StudyContext) -> StudyResult:
    """Accuracy against the share of attackers, for every rule and attack, and what a rule costs without any."""
    size, alphas = _SIZES[scale], _ALPHAS if scale == "cpu" else (1.0,)
    cells: list[Cell] = [(arm, "none", 0.0, a, s) for arm in size.arms for a in alphas for s in range(size.seeds)]
    cells += [
        (arm, attack, share, 1.0, seed)
        for arm in size.arms
        for attack in size.attacks
        for share in size.shares
        for seed in range(size.seeds)
    ]
    runs = {cell: _accuracy(cell, size.rounds) for cell in context.track(cells, "training")}

    def mean(arm: str, attack: str, share: float, alpha: float = 1.0) -> float:
        known = ("none", 0.0) if share == 0 else (attack, share)
        return float(np.mean([runs[arm, *known, alpha, seed] for seed in range(size.seeds)]))

    shares = (0.0, *size.shares)
    table = {
        arm: {attack: {f"{share:g}": mean(arm, attack, share) for share in shares} for attack in size.attacks}
        | {"none": {f"alpha {alpha:g}": mean(arm, "none", 0.0, alpha) for alpha in alphas}}
        for arm in size.arms
    }
    figures = {}
    if scale == "cpu":
        shown = size.arms[:7]
        panels = [
            LinePanel(
                attack,
                "share of attackers",
                np.array(shares),
                {arm: np.array([mean(arm, attack, share) for share in shares]) for arm in shown},
            )
            for attack in size.attacks
        ]
        cost = {arm: np.array([mean(arm, "none", 0.0, alpha) for alpha in alphas]) for arm in shown}
        panels.append(
            LinePanel("no attacker", "alpha (to the left: clients differ)", np.array(alphas), cost, across_scale="log")
        )
        figures = {"accuracy": line_panels("Test accuracy on the digits among attackers", panels)}
    impossible = [run for run in runs.values() if not 0 <= run <= 1]
    checks = [at_most("accuracies that are no share", len(impossible), 0), *claims(_claims(table), scale)]
    return context.result(checks, figures=figures, data=table)


def _accuracy(cell: Cell, rounds: int) -> float:
    """After the last round; 0 where the model is lost (no longer finite), which the mean comes to."""
    arm, attack, share, alpha, seed = cell
    method, robust = _ARMS[arm]
    faults = pl.Faults(attackers=share, attack=attack, attack_strength=_ATTACKS[attack]) if share else pl.Faults()  # type: ignore[arg-type]
    try:
        run = pl.train(
            method,
            pl.data.digits().split(pl.Dirichlet(alpha), clients=_CLIENTS, seed=seed),
            model=pl.models.linear(),
            rounds=rounds,
            cohort=pl.Sampling(weights="uniform"),
            seed=seed,
            robust=robust,
            faults=faults,
            runtime="stacked",
            evaluation=pl.Evaluation(every=rounds),
        )
    except pl.ParleyError:
        return 0.0
    return run.last()


def _claims(table: dict[str, dict[str, dict[str, float]]]) -> list[Check]:
    """Statements about training, written before it was run."""
    if "mixing, median" not in table:
        return []
    free = table["mean"]["none"]["alpha 1"]
    withstood = ("sign-flip", "noise", "scaled")
    strong = ("geometric median", "multi-Krum", "mixing, median")
    least = {arm: min(table[arm][attack]["0.2"] for attack in withstood) for arm in strong}
    lost = {arm: table["mean"]["none"]["alpha 0.1"] - table[arm]["none"]["alpha 0.1"] for arm in table}
    return [
        at_most("the mean's accuracy, 40% flip signs", table["mean"]["sign-flip"]["0.4"], 0.3),
        at_most("the mean's accuracy, 40% send noise", table["mean"]["noise"]["0.4"], 0.8),
        *(
            at_least(
                f"accuracy at 20% attackers over the mean's without, worst of three attacks: {arm}", value - free, -0.1
            )
            for arm, value in least.items()
        ),
        at_least("lost without attackers where clients differ (alpha 0.1): median", lost["median"], 0.02),
        at_least("lost without attackers where clients differ (alpha 0.1): Krum", lost["Krum"], 0.1),
        at_most(
            "lost without attackers where clients are alike (alpha 100): median",
            table["mean"]["none"]["alpha 100"] - table["median"]["none"]["alpha 100"],
            0.02,
        ),
        at_most(
            "lost by mixing before the median over the median's, alpha 0.1",
            lost["mixing, median"] / max(lost["median"], 1e-9),
            1.0,
        ),
        at_least("lost by the trimmed mean to a-little at 40%", free - table["trimmed mean"]["a-little"]["0.4"], 0.03),
    ]
