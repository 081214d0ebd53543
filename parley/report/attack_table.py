"""Attacks as a table: every defence beside the study as it is, with intervals, and what follows in sentences."""

from __future__ import annotations

import math

from parley.attack.findings import BLIND, NONE, Findings, Row
from parley.study.seeds import SeedMean


def attack_table(findings: Findings) -> tuple[list[str], list[tuple[str | None, ...]]]:
    """Columns and rows: the mean score of each attack, the best one's with its interval, the change a defence makes."""
    names = [name for name in findings.attacks if name != BLIND]
    unit = findings.measure.upper()
    columns = ["defence", "samples", *names, BLIND, f"best {unit}", "changed by", "best PSNR", "labels found"]
    return columns, [_line(findings, row, names) for row in findings.rows]


def _line(findings: Findings, row: Row, names: list[str]) -> tuple[str | None, ...]:
    what, digits = findings.measure, 2 if findings.pictures else 1
    means = [
        f"{SeedMean.of(row.values(what, name)).value:.{digits}f}" if name in row.scores else None
        for name in [*names, BLIND]
    ]
    if len(row.scores) == 1:
        return row.defence, str(row.samples), *means, None, None, None, None
    best = SeedMean.of(row.values(what))
    plain = findings.row(NONE, row.samples)
    change = (
        None if row is plain or row.defence == NONE else _shown(best - SeedMean.of(plain.values(what)), digits, "+")
    )
    psnr, labels = (SeedMean.of(row.values(value)) for value in ("psnr", "labels"))
    recovered = None if math.isnan(labels.value) else f"{labels.value:.0%}"
    return row.defence, str(row.samples), *means, _shown(best, digits), change, f"{psnr.value:.1f} dB", recovered


def _shown(mean: SeedMean, digits: int, sign: str = "") -> str:
    half = "" if math.isnan(mean.half) else f" ± {mean.half:.{digits}f}"
    return f"{mean.value:{sign}.{digits}f}{half}"


def sentences(findings: Findings) -> list[str]:
    """What else there is to say."""
    victims = len(findings.rows[0].values("psnr", BLIND))
    many = f"{victims} victim{'s' * (victims != 1)}; 95% intervals over them; best: the best attack on each victim; "
    if findings.pictures:
        lines = [f"{many}blind: the mean picture, which needs no reply."]
    else:
        lines = [f"{many}a PSNR of 100 dB is an exact copy; blind: the mean input, which needs no reply."]
    lines += findings.disclosures
    if findings.members:
        mean = SeedMean.of(findings.members)
        lines.append(
            f"Membership by loss after {findings.rounds} rounds: AUC {_shown(mean, 3)} over {len(findings.members)} "
            "clients (0.5 is chance, 1 identifies every member)."
        )
    return lines + [f"Note: {note}" for note in findings.notes]
