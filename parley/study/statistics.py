"""Federated statistics of a study's clients before training, and what of them is frozen into the study.

    found = statistics(study)                       # or of a federation
    found.frame()
    train(replace(study, preprocessing=found.preprocessing("standard")))

The question is a method like any other (`parley.algorithms.statistics`): every runtime carries it, and owners of nodes
consent to it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from parley.algorithms.statistics import SHARES, FederatedStatistics, moments, variance
from parley.channels import Channel
from parley.channels import channels as channel_names
from parley.channels.secure import SecureSum
from parley.core.errors import InputError, ParleyError
from parley.core.show import Brief
from parley.core.text import plain_cell
from parley.data import Federation
from parley.data.local.images import holds_images
from parley.data.preprocessing import Preprocessing
from parley.data.schema import SchemaDifference, folder_schemas, schema_differences
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Faults
from parley.learn.binning import Counts, Floats
from parley.learn.exact_sums import exact_value, rounded
from parley.learn.floors import cell_quantiles
from parley.study.channel_names import stages
from parley.study.data_section import DataSection
from parley.study.description import Study
from parley.study.sections import plain
from parley.study.train import train

if TYPE_CHECKING:
    from pandas import DataFrame

Quantiles = Literal["blocks", "cells"]
Method = Literal["standard", "min-max", "robust", "none"]
METHODS = ("standard", "min-max", "robust", "none")
FILLS = ("mean", "median")
_NOTHING = Evaluation(central=False, clients="none")


@dataclass(frozen=True, repr=False)
class Feature(Brief):
    """A column of a table, a channel of an image or a target, over all clients that told of it."""

    name: str
    count: int
    """Values that are there."""
    missing: int
    mean: float | None
    """None where there are no values."""
    std: float | None
    """Of the population: n, not n - 1."""
    variance: float | None
    quantiles: Mapping[float, float]
    """Share -> value; empty where there are no values. 0 and 1 are the lowest and the highest block's mean or cell's
    end: the smallest and the largest value are not told."""
    rank_error: float | None
    """By which share of the values a quantile's rank may be off, at most."""
    fill: float | None
    """What stands for missing values: the median; of a column of few different values one of them, None where there are
    none that enough samples of a client share."""
    edges: tuple[float, ...]
    """Upper edges of the histogram's cells; the last cell has none."""
    counts: tuple[int, ...]
    """Values in each cell, without those of cells that were too small at a client to be told."""
    withheld: int
    """Clients that told nothing of it because they have too few values."""
    target: bool = False

    @property
    def left_out(self) -> int:
        """Values that the histogram lacks, because too few were in their cell to be told."""
        return self.count - sum(self.counts)


@dataclass(frozen=True, repr=False)
class Statistics(Brief):
    """What all clients told together."""

    title: str
    floor: int
    clients: int
    """That were asked."""
    contributed: int
    """That told something; the others have too few samples, or did not answer."""
    samples: int
    """Of those that told something."""
    features: tuple[Feature, ...]
    labels: Mapping[str, int]
    """Class -> samples, without those of classes that are too rare at a client."""
    absent: Mapping[str, str]
    """Client that did not answer -> why."""
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    quantiles: Quantiles
    """Where quantiles come from."""

    @classmethod
    def of(cls, run: Run) -> Statistics:
        """From a run of the method, trained or loaded."""
        if not isinstance(run.algorithm, FederatedStatistics) or "sums" not in run.state:
            raise ParleyError("this run has no statistics: no client answered, or it was for something else.")
        sums, info = run.state["sums"], run.task.info
        names = info.classes or tuple(map(str, range(info.outputs)))
        classes = () if info.kind == "regression" else names
        return cls(
            info.name, run.algorithm.floor, len(run.federation), int(sums["clients"]), int(sums["rows"]),
            tuple(_features(run)), dict(zip(classes, sums["labels"].tolist(), strict=True)),
            {one.client: one.reason for one in run.failures()}, info.columns, classes,
            run.algorithm.quantiles,
        )  # fmt: skip

    @property
    def rare(self) -> int:
        """Samples that the labels lack, because too few were of their class at a client to be told."""
        return self.samples - sum(self.labels.values()) if self.labels else 0

    def __getitem__(self, name: str) -> Feature:
        found = next((feature for feature in self.features if feature.name == name), None)
        if found is None:
            raise InputError(f"there is no column '{name}'; there are {[one.name for one in self.features]}.")
        return found

    def rows(self) -> list[dict[str, Any]]:
        """A row for every feature: counts, moments and quantiles; `low` and `high` are of blocks or cells."""
        named = {0.0: "low", 1.0: "high"}
        return [
            {
                "feature": one.name, "count": one.count, "missing": one.missing, "mean": one.mean, "std": one.std,
                "variance": one.variance,
                **{named.get(share, f"{share:.0%}"): one.quantiles.get(share) for share in SHARES},
                "rank_error": one.rank_error, "withheld": one.withheld,
            }
            for one in self.features
        ]  # fmt: skip

    def frame(self) -> DataFrame:
        """The rows as a pandas DataFrame with the features' names as index."""
        try:
            import pandas
        except ImportError:
            raise InputError("data frames need the package pandas; install it or write a .csv file.") from None
        return pandas.DataFrame(self.rows()).set_index("feature")

    def csv(self) -> str:
        text = io.StringIO()
        rows = self.rows()
        table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        table.writeheader()
        table.writerows(row | {"feature": plain_cell(str(row["feature"]))} for row in rows)
        return text.getvalue()

    def json(self) -> str:
        """Everything, histograms and labels included."""
        whole = asdict(self)
        for one in whole["features"]:
            one["quantiles"] = {f"{share:g}": value for share, value in one["quantiles"].items()}
        return json.dumps(whole, indent=1) + "\n"

    def preprocessing(self, method: Method = "standard", fill: str | None = None) -> Preprocessing:
        """What is frozen: a normalisation, what stands for missing values (mean or median), and the label map.

        standard: mean 0 and deviation 1. min-max: the lowest to the highest block or cell become 0 to 1. robust: median
        0 and distance of the quartiles 1. Columns that do not vary are left alone. The median of a column of few
        different values is one of them.
        """
        if method not in METHODS or fill not in (None, *FILLS):
            raise InputError(
                f"a normalisation is one of {', '.join(METHODS)}, and missing values become the mean or the median; "
                f"not {method!r} and {fill!r}."
            )
        if method == "none" and fill is None:
            return Preprocessing(classes=self.classes, samples=self.samples)
        numbers = [_frozen(one, method, fill) for one in self.features if not one.target]
        center, scale, filled = (tuple(values) for values in zip(*numbers, strict=True))
        return Preprocessing(center, scale, filled if fill else (), self.columns, self.classes, self.samples)


def statistics(
    what: Study | Federation, *, floor: int = 10, bins: int = 8, quantiles: Quantiles | None = None,
    blocks: int = 100, ranges: Sequence[tuple[float, float]] = (), **settings: Any,
) -> Statistics:  # fmt: skip
    """Ask the clients of a study or a federation; `settings` are those of `train`, such as runtime and workers.

    Of a study, the samples are those before any preprocessing, and of its channels `secure-sum` holds here too.
    Nothing leaves a client that fewer than `floor` samples stand behind. Quantiles are from blocks, with secure sums
    from cells.
    """
    channels = settings.get("channels", what.channels if isinstance(what, Study) else ())
    method = FederatedStatistics(
        floor, bins, quantiles or quantiles_with(_secure(stages(channels))), blocks, tuple(ranges)
    )
    return Statistics.of(train(statistics_study(what, method), **settings))


def quantiles_with(secure: Sequence[Any]) -> Quantiles:
    """Where quantiles come from with these secure sums, if any: blocks are no sums."""
    return "cells" if secure else "blocks"


def statistics_study(what: Study | Federation, method: FederatedStatistics) -> Study:
    """The question as a study of one round, with the same clients, secure sums and limits for those that fail."""
    if isinstance(what, Federation):
        return Study(method, what, rounds=1, evaluation=_NOTHING)
    data, faults = what.data, what.faults or Faults()
    if isinstance(data, DataSection):
        data = replace(data, standardise=False, seed=what.seed if data.seed is None else data.seed)
    limits = Faults(deadline=faults.deadline, quorum=faults.quorum, at_least=faults.at_least, require=faults.require)
    return Study(
        method, data, rounds=1, evaluation=_NOTHING, faults=limits, runtime=what.runtime, workers=what.workers,
        address=what.address, name=f"statistics of {what.title}", plugins=what.plugins,
        channels=_secure(stages(what.channels)),
    )  # fmt: skip


def statistics_table(table: Mapping[str, Any], method: FederatedStatistics) -> dict[str, Any]:
    """The same as a table, for a deployment, whose data are the nodes'."""
    limits = ("deadline", "quorum", "at_least", "require")
    faults = {name: value for name, value in dict(table.get("faults") or {}).items() if name in limits}
    secure = secure_names(table)
    return {
        "name": f"statistics of {table['name']}" if table.get("name") else "statistics", "rounds": 1,
        "algorithm": {"name": "statistics", **plain(method)}, "faults": faults, "evaluate": plain(_NOTHING),
    } | ({"channels": {"up": secure}} if secure else {})  # fmt: skip


def secure_names(table: Mapping[str, Any]) -> list[str]:
    """The secure sums among the channels of a study's table; other channels are of its training alone."""
    section = table.get("channels")
    up = section.get("up") if isinstance(section, Mapping) else None
    named = [text for text in up if isinstance(text, str)] if isinstance(up, list | tuple) else []
    return [text for text in named if text.partition("(")[0].strip() == channel_names.name_of(SecureSum)]


def _secure(given: Sequence[Channel]) -> tuple[Channel, ...]:
    return tuple(one for one in given if isinstance(one, SecureSum))


def frozen_table(table: Mapping[str, Any], agreed: Preprocessing) -> dict[str, Any]:
    """A study's table with what was agreed on, in place of what it said itself."""
    kept = {name: value for name, value in table.items() if name not in ("data_fingerprint", "preprocessing")}
    if isinstance(kept.get("data"), Mapping):
        kept["data"] = {name: value for name, value in kept["data"].items() if name != "standardise"}
    return kept | {"preprocessing": {name: value for name, value in plain(agreed).items() if value}}


def differences_of(study: Study) -> list[SchemaDifference]:
    """In what the files of a study's folder differ; of other data nothing, they were made alike."""
    data = study.data
    if not isinstance(data, DataSection) or data.folder is None or holds_images(Path(data.folder)):
        return []
    return schema_differences(folder_schemas(Path(data.folder), data.target, data.kind, data.dtype, data.missing))


def _features(run: Run) -> list[Feature]:
    sums, cells, told = run.state["sums"], run.state["cells"], run.state.get("quantiles")
    means, deviations = moments(sums)
    found = []
    for row, (name, target) in enumerate(_names(run)):
        # No less than nothing, whatever a client made up.
        count, counts = max(int(sums["count"][row]), 0), cells["counts"][row].clamp_min(0).numpy()
        edges = cells["edges"][row].numpy()
        fill: float | None = None
        if told:
            of, values = max(int(told["of"][row]), 0), told["values"][row].tolist()
            error = int(told["off"][row]) / max(of, 1)
            fill = float(told["fill"][row]) if of and told["known"][row] else None
        else:
            of, values = int(counts.sum()), cell_quantiles(edges, counts, SHARES).tolist()
            error = min((int(counts.max()) + count - of) / max(count, 1), 1.0)
            fill = values[SHARES.index(0.5)] if of else None
        if (ones := _ones(count, sums["first"][row].numpy(), sums["second"][row].numpy(), edges, counts)) is not None:
            of, error = count, 0.0
            values = [float(max(ceil(share * count), 1) > count - ones) for share in SHARES]
            fill = values[SHARES.index(0.5)]
        spread = (
            None if count == 0 else rounded(variance(count, sums["first"][row].numpy(), sums["second"][row].numpy()))
        )
        found.append(
            Feature(
                name, count, int(sums["missing"][row]), float(means[row]) if count else None,
                float(deviations[row]) if count else None, spread, dict(zip(SHARES, values, strict=True)) if of else {},
                error if of else None, fill, tuple(edges.tolist()), tuple(counts.tolist()), int(sums["small"][row]),
                target,
            )
        )  # fmt: skip
    return found


def _ones(count: int, first: Counts, second: Counts, edges: Floats, counts: Counts) -> int | None:
    """How many values of a column of zeros and ones are ones, from its sums; None for other columns.

    Whole numbers have x = x^2 for 0 and 1 only, and x < x^2 otherwise, so equal sums say it. (Of other numbers below 1
    and above it sums could be equal by chance; then some of the cells with values hold neither 0 nor 1.)
    """
    total = exact_value(first, 1)
    if not count or total != exact_value(second, 2) or total.denominator != 1 or not 0 <= total <= count:
        return None
    holding = np.searchsorted(edges, [0.0, 1.0])
    return None if np.delete(counts, holding).any() else int(total)


def _names(run: Run) -> list[tuple[str, bool]]:
    """The features' names, and whether they are targets."""
    info = run.task.info
    many = info.shape[0] if info.shape else 1
    plain_names = [f"channel {n}" if len(info.shape) > 1 else f"x{n}" for n in range(many)]
    targets = info.outputs if info.kind == "regression" else 0
    named = ["target"] if targets == 1 else [f"target {n}" for n in range(targets)]
    return [(name, False) for name in info.columns or plain_names] + [(name, True) for name in named]


def _frozen(one: Feature, method: Method, fill: str | None) -> tuple[float, float, float]:
    """Center, scale and what stands for missing values."""
    if one.mean is None or one.std is None or not one.quantiles:
        raise InputError(
            f"column '{one.name}' has no values that clients may tell of, so nothing can be frozen; leave it out of "
            "the data, or lower the floor."
        )
    share = one.quantiles
    center, scale = {
        "standard": (one.mean, one.std),
        "min-max": (share[0.0], share[1.0] - share[0.0]),
        "robust": (share[0.5], share[0.75] - share[0.25]),
        "none": (0.0, 1.0),
    }[method]
    if fill == "median" and one.fill is None:
        raise InputError(
            f"column '{one.name}' has few different values, and none that enough samples of one client share to be "
            "told; fill with the mean, or lower the floor."
        )
    if scale == float("inf"):
        raise InputError(f"column '{one.name}' holds numbers that are too large to be normalised.")
    if scale == 0 or one.std == 0:
        center, scale = 0.0, 1.0
    return center, scale, one.mean if fill == "mean" or one.fill is None else one.fill
