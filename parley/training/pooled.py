"""How classes are told apart over all samples of all clients, from sums of counts: AUC, calibration, confusion.

The mean of clients' own AUCs leaves out who has one class, and a site with three positives counts as much as one with
three hundred. Counts of scores in bins add up over clients:

    two classes       the score is the difference of the logits, z1 - z0; counted are scores of class 0 and of class 1
    more              it is the largest logit against all others, log p/(1 - p); counted are wrong and right samples

Bins are 0.1 wide between -8 and 8, and wider beyond: in logits, because probabilities of rare classes crowd near 0. AUC
is between that with all pairs inside one bin in the wrong order and that with all of them in the right one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError
from parley.training.losses import IGNORE

Counted = NDArray[np.int64]
Method = Literal["temperature", "platt"]
MOST_CLASSES = 100
"""The confusion matrix has this many rows at most."""
_INNER = np.round(np.arange(-80, 81) / 10, 1)
_OUTER = 8 * np.geomspace(1, 25, 61)[1:]
EDGES = np.concatenate([-_OUTER[::-1], _INNER, _OUTER])
"""Between neighbouring bins; what lies beyond the last is in a bin of its own."""
BINS = len(EDGES) + 1
CENTERS = np.concatenate([EDGES[:1], (EDGES[:-1] + EDGES[1:]) / 2, EDGES[-1:]])
POOLED = ("loss", "accuracy", "auc", "calibration-error")
"""What is recorded as pooled/...; the AUC of two classes alone."""


@dataclass(frozen=True)
class Counts:
    """Sums over samples; those of several clients are added up."""

    confusion: Counted
    """[C, C]: samples of the class (row) that are taken for the class (column)."""
    scores: Counted
    """[2, BINS]: samples of class 0 and 1 by score; of more than two classes wrong and right ones."""
    lost: int = 0
    """Samples whose outputs are no finite numbers, which are in neither."""

    @classmethod
    def of(cls, outputs: Tensor, targets: Tensor) -> Self:
        """Outputs are logits [n, C], targets classes [n]."""
        logits = outputs.movedim(1, -1).reshape(-1, outputs.shape[1]).double()
        y = targets.reshape(-1)
        counted, classes = y != IGNORE, logits.shape[1]
        finite = torch.isfinite(logits).all(1)
        z, y = logits[counted & finite], y[counted & finite]
        predicted = z.argmax(1)
        if classes == 2:
            score, side = z[:, 1] - z[:, 0], y
        else:
            rest = z.scatter(1, predicted[:, None], -math.inf).logsumexp(1)
            score, side = z.gather(1, predicted[:, None])[:, 0] - rest, (predicted == y).long()
        bins = torch.from_numpy(np.searchsorted(EDGES, score.numpy(), side="right"))
        confusion = torch.bincount(y * classes + predicted, minlength=classes**2).reshape(classes, classes)
        scores = torch.bincount(side * BINS + bins, minlength=2 * BINS).reshape(2, BINS)
        return cls(confusion.numpy(), scores.numpy(), int((counted & ~finite).sum()))

    @classmethod
    def total(cls, each: Iterable[Counts]) -> Counts:
        """The counts of all clients together."""
        several = list(each)
        return Counts(
            np.sum([counts.confusion for counts in several], axis=0),
            np.sum([counts.scores for counts in several], axis=0),
            sum(counts.lost for counts in several),
        )

    # -- on the wire and in the store --------------------------------------------------------------------------------

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"confusion": self.confusion.ravel().tolist(), "scores": self.scores.ravel().tolist(), "lost": self.lost}

    @property
    def text(self) -> str:
        return json.dumps(self.plain(), separators=(",", ":"))

    @classmethod
    def read(cls, stored: Any) -> Self:
        """The same back; a ValueError if it is none, as where a node makes it up."""
        stored = json.loads(stored) if isinstance(stored, str) else stored
        confusion, scores, lost = (stored[name] for name in ("confusion", "scores", "lost"))
        classes = math.isqrt(len(confusion))
        if not 2 <= classes <= MOST_CLASSES or classes**2 != len(confusion) or len(scores) != 2 * BINS:
            raise ValueError("counts of another form")
        if any(type(count) is not int or not 0 <= count < 2**40 for count in (*confusion, *scores, lost)):
            raise ValueError("counts that are none")
        counts = cls(np.array(confusion, np.int64).reshape(classes, classes), np.array(scores).reshape(2, BINS), lost)
        right = counts.confusion.trace()
        sides = counts.confusion.sum(1) if classes == 2 else (counts.confusion.sum() - right, right)
        if not np.array_equal(counts.scores.sum(1), sides):
            raise ValueError("counts that contradict each other")
        return counts

    # -- what follows from them --------------------------------------------------------------------------------------

    @property
    def classes(self) -> int:
        return len(self.confusion)

    @property
    def samples(self) -> int:
        return int(self.confusion.sum()) + self.lost

    @property
    def balance(self) -> Counted:
        """[C]: samples of each class."""
        return np.asarray(self.confusion.sum(1), np.int64)

    @property
    def auc(self) -> tuple[float, float]:
        """The area under the ROC curve of two classes, and by how much it may be off: half the share of pairs that
        share a bin. NaN where there are no pairs."""
        negative, positive = self.scores.astype(np.float64)
        pairs = negative.sum() * positive.sum()
        if self.classes != 2 or self.lost or pairs == 0:
            return math.nan, math.nan
        below = np.cumsum(negative) - negative
        shared = (positive * negative).sum() / 2
        return float(((positive * below).sum() + shared) / pairs), float(shared / pairs)

    @property
    def roc(self) -> tuple[np.ndarray, np.ndarray]:
        """False and true positive rates, from the highest bin to the lowest."""
        sums = np.concatenate([np.zeros((2, 1)), np.cumsum(self.scores[:, ::-1], 1)], 1)
        rates = sums / np.maximum(sums[:, -1:], 1)
        return rates[0], rates[1]

    def calibration(self, groups: int = 10) -> tuple[np.ndarray, np.ndarray, Counted]:
        """Mean probability said and share that came true, in groups of neighbouring bins of about equal size."""
        from scipy.special import expit

        every = self.scores.sum(0)
        if not every.sum():
            return np.array([]), np.array([]), np.array([], np.int64)
        middle = np.cumsum(every) - every / 2
        of = np.minimum((middle * groups / every.sum()).astype(int), groups - 1)
        sizes = np.bincount(of, every, groups)
        predicted, true = (np.bincount(of, each, groups) for each in (every * expit(CENTERS), self.scores[1]))
        some = sizes > 0
        return predicted[some] / sizes[some], true[some] / sizes[some], sizes[some].astype(np.int64)

    @property
    def calibration_error(self) -> float:
        """|said - true| of ten groups of about equal size, weighted by size."""
        predicted, true, sizes = self.calibration()
        if self.lost or not len(sizes):
            return math.nan
        return float((np.abs(predicted - true) * sizes).sum() / sizes.sum())

    def recalibrated(self, method: Method) -> tuple[float, float]:
        """(slope, shift) of the scores by which they fit best what came true: Platt's two numbers, or one with shift 0.

        The likelihood is that of the pooled samples with scores at the middle of their bins, so what a client tells is
        a sum. With Platt's targets, (positives + 1)/(positives + 2) and 1/(negatives + 2), classes that the scores
        separate have an answer as well.
        """
        from scipy.optimize import minimize
        from scipy.special import expit

        if self.classes != 2:
            raise InputError(f"recalibration is for two classes, and here are {self.classes}.")
        negatives, positives = self.scores.sum(1).tolist()
        if self.lost or not negatives or not positives:
            raise InputError("recalibration needs held-out samples of both classes, with finite outputs.")
        high, low = (positives + 1) / (positives + 2), 1 / (negatives + 2)
        every, ones = self.scores.sum(0), self.scores[1] * high + self.scores[0] * low
        design = np.stack([CENTERS, np.full(BINS, float(method == "platt"))])

        def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
            z = at @ design
            return float((every * np.logaddexp(0, z) - ones * z).sum()), design @ (every * expit(z) - ones)

        slope, shift = minimize(loss, np.array([1.0, 0.0]), jac=True, method="BFGS", options={"gtol": 1e-9}).x
        return float(slope), float(shift)
