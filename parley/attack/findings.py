"""What attacks found, victim by victim, as a table, as CSV and as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from parley.core.show import Brief
from parley.core.text import csv_text

Measure = Literal["ssim", "psnr"]
NONE = "none"
"""The defence of a study as it is."""


@dataclass(frozen=True)
class Score:
    """How one attack did on one victim, a mean over its samples."""

    ssim: float
    psnr: float
    labels: float
    """The share of the labels that were found; NaN where targets are numbers."""


@dataclass(frozen=True)
class Row:
    """One defence and one number of samples: every attack's score on every victim, in the same order of victims."""

    defence: str
    samples: int
    scores: dict[str, tuple[Score, ...]]
    originals: Tensor | None = field(default=None, repr=False)
    """The first victim's inputs, [n, ...]."""
    rebuilt: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """What each attack made of them, beside their originals."""

    def values(self, what: str, attack: str | None = None) -> list[float]:
        """One number per victim; without an attack, that of the best of them for each victim."""
        if attack is not None:
            return [float(getattr(score, what)) for score in self.scores[attack]]
        each = zip(*(self.values(what, name) for name in self.scores if name != BLIND), strict=True)
        return [max((value for value in values if not math.isnan(value)), default=math.nan) for values in each]


BLIND = "blind"
"""The attack of one who received nothing: the mean picture and the commonest label."""


@dataclass(frozen=True, repr=False)
class Findings(Brief):
    """All rows, what replies hold as it is, and membership."""

    study: str
    method: str
    rows: tuple[Row, ...]
    pictures: bool
    seed: int
    rounds: int
    """Rounds trained before the attack."""
    disclosures: tuple[str, ...] = ()
    """Sentences about what replies hold as it is."""
    members: tuple[float, ...] = ()
    """AUC of membership by loss, one per client."""
    notes: tuple[str, ...] = ()

    @property
    def measure(self) -> Measure:
        """What tells how good a reconstruction is: SSIM of pictures, PSNR of other inputs."""
        return "ssim" if self.pictures else "psnr"

    @property
    def attacks(self) -> list[str]:
        """All that were tried, the blind one last."""
        names = dict.fromkeys(name for row in self.rows for name in row.scores if name != BLIND)
        return [*names, BLIND]

    def row(self, defence: str = NONE, samples: int | None = None) -> Row:
        """The row of a defence, of the fewest samples unless said."""
        rows = [row for row in self.rows if row.defence == defence and samples in (None, row.samples)]
        return min(rows, key=lambda row: row.samples)

    def records(self) -> list[dict[str, Any]]:
        """One per row, attack and victim."""
        return [
            {
                "defence": row.defence,
                "samples": row.samples,
                "attack": attack,
                "victim": victim,
                "ssim": score.ssim,
                "psnr": score.psnr,
                "labels": score.labels,
            }
            for row in self.rows
            for attack, scores in row.scores.items()
            for victim, score in enumerate(scores)
        ]

    def csv(self) -> str:
        return csv_text(self.records(), ("defence", "samples", "attack", "victim", "ssim", "psnr", "labels"))

    def json(self) -> str:
        body = {
            "study": self.study,
            "method": self.method,
            "seed": self.seed,
            "rounds": self.rounds,
            "disclosures": self.disclosures,
            "membership": self.members,
            "notes": self.notes,
            "scores": [{k: None if v != v else v for k, v in record.items()} for record in self.records()],
        }
        return json.dumps(body, indent=1, allow_nan=False) + "\n"
