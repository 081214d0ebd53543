"""Federated statistics of a study's clients before training, and what of them is frozen into the study.

    found = statistics(study)                       # or of a federation
    found.frame()
    train(replace(study, preprocessing=found.preprocessing("standard")))

The question is a method like any other (`parley.statistics.method`): every runtime carries it, and owners of nodes
consent to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from parley.algorithms import algorithms
from parley.algorithms.protocol import Algorithm
from parley.algorithms.trees.binning import Counts, Floats
from parley.channels import Channel
from parley.channels import channels as channel_names
from parley.core.errors import InputError, ParleyError
from parley.core.show import Brief
from parley.core.text import csv_text
from parley.data import Federation
from parley.data.columns import Column, Method
from parley.data.local.images import holds_images
from parley.data.local.tables import cells_of
from parley.data.preprocessing import Preprocessing
from parley.data.schema import SchemaDifference, folder_schemas, schema_differences
from parley.engine.run import Run
from parley.engine.settings import Evaluation, Faults
from parley.secure import SecureSum
from parley.statistics.exact_sums import exact_value, rounded
from parley.statistics.floors import cell_quantiles
from parley.statistics.frozen import Feature, encoded_columns, frozen
from parley.statistics.levels import unpacked
from parley.statistics.method import SHARES, FederatedStatistics, moments, variance
from parley.study.channel_names import stages
from parley.study.data_section import DataSection
from parley.study.sections import build, plain
from parley.study.study import Study
from parley.study.train import train

if TYPE_CHECKING:
    from pandas import DataFrame

Quantiles = Literal["blocks", "cells"]
METHODS = ("standard", "min-max", "robust", "none")
FILLS = ("mean", "median")
_NOTHING = Evaluation(central=False, clients="none")


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
    levels: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Column of texts -> level -> samples, without those of levels that are too rare at a client."""
    rare_levels: Mapping[str, int] = field(default_factory=dict)
    """Column of texts -> samples that its levels lack for that reason."""

    @classmethod
    def of(cls, run: Run) -> Statistics:
        """From a run of the method, trained or loaded."""
        if "cells" not in run.state:
            raise ParleyError("this run has no statistics: no client answered, or it was for something else.")
        sums, info = run.state["sums"], run.task.info
        asked = {each.name: each for each in run.algorithm.exchanges()}
        names = info.classes or tuple(map(str, range(info.outputs)))
        classes = () if info.kind == "regression" else names
        return cls(
            info.name,
            asked["client"].floor or 1,
            len(run.federation),
            int(sums["clients"]),
            int(sums["rows"]),
            tuple(_features(run)),
            dict(zip(classes, sums["labels"].tolist(), strict=True)),
            {failure.client: failure.reason for failure in run.failures()},
            info.columns,
            classes,
            "blocks" if "neighbours" in asked else "cells",
            *_levels(run),
        )

    @property
    def rare(self) -> int:
        """Samples that the labels lack, because too few were of their class at a client to be reported."""
        return self.samples - sum(self.labels.values()) if self.labels else 0

    def __getitem__(self, name: str) -> Feature:
        match = next((feature for feature in self.features if feature.name == name), None)
        if match is None:
            raise InputError(f"there is no column '{name}'; there are {[known.name for known in self.features]}.")
        return match

    def rows(self) -> list[dict[str, Any]]:
        """A row for every feature: counts, moments and quantiles; `low` and `high` are of blocks or cells."""
        named = {0.0: "low", 1.0: "high"}
        return [
            {
                "feature": feature.name,
                "count": feature.count,
                "missing": feature.missing,
                "mean": feature.mean,
                "std": feature.std,
                "variance": feature.variance,
                **{named.get(share, f"{share:.0%}"): feature.quantiles.get(share) for share in SHARES},
                "rank_error": feature.rank_error,
                "withheld": feature.withheld,
            }
            for feature in self.features
        ]

    def frame(self) -> DataFrame:
        """The rows as a pandas DataFrame with the features' names as index."""
        try:
            import pandas
        except ImportError:
            raise InputError("data frames need the package pandas; install it or write a .csv file.") from None
        return pandas.DataFrame(self.rows()).set_index("feature")

    def csv(self) -> str:
        return csv_text([row | {"feature": str(row["feature"])} for row in self.rows()])

    def json(self) -> str:
        """Everything, histograms and labels included."""
        whole = asdict(self)
        for feature in whole["features"]:
            feature["quantiles"] = {f"{share:g}": value for share, value in feature["quantiles"].items()}
        return json.dumps(whole, indent=1) + "\n"

    def preprocessing(
        self,
        method: Method = "standard",
        fill: str | None = None,
        table: Mapping[str, Column] | None = None,
        target: Method = "none",
        class_weight: Literal["balanced"] | None = None,
    ) -> Preprocessing:
        """What is frozen: a normalisation, what stands for missing values (mean or median), and the label map.

        standard: mean 0 and deviation 1. min-max: the lowest to the highest block or cell become 0 to 1. robust: median
        0 and distance of the quartiles 1. Columns that do not vary are left alone. The median of a column of few
        different values is one of them.

        Columns of texts become inputs of zeros and ones, one for each level; missing texts become the most frequent
        one if `fill` is given. `table` says what else is wanted of single columns (`Column`), `target` how regression
        targets are scaled. With `class_weight` a class of n_k samples weighs sum_j n_j / (classes n_k) in the loss.
        """
        if {method, target} - set(METHODS) or fill not in (None, *FILLS):
            raise InputError(
                f"a normalisation is one of {', '.join(METHODS)}, and missing values become the mean or the median; "
                f"not {method!r} and {fill!r}."
            )
        more: dict[str, Any] = {"classes": self.classes, "samples": self.samples}
        if target != "none":
            if self.classes:
                raise InputError("the target is a class, which is not scaled.")
            scaled = [frozen(feature, target, None)[:2] for feature in self.features if feature.target]
            more["target_center"], more["target_scale"] = (tuple(values) for values in zip(*scaled, strict=True))
        if class_weight is not None:
            more["class_weights"] = self._balanced(class_weight)
        if self.levels or table or any(feature.date for feature in self.features):
            encoded = encoded_columns(self.features, self.levels, self.columns, table or {}, method, fill)
            return Preprocessing(table=encoded, **more)
        if method == "none" and fill is None:
            return Preprocessing(**more)
        numbers = [frozen(feature, method, fill) for feature in self.features if not feature.target]
        center, scale, filled = (tuple(values) for values in zip(*numbers, strict=True))
        return Preprocessing(center, scale, filled if fill else (), self.columns, **more)

    def _balanced(self, class_weight: str) -> tuple[float, ...]:
        """Every class weighs as much as any other."""
        if class_weight != "balanced":
            raise InputError(f"class weights are balanced or left out, not '{class_weight}'.")
        if not self.labels:
            raise InputError("the target is no class, so there are no classes to weigh.")
        if (none := next((name for name, count in self.labels.items() if not count), None)) is not None:
            raise InputError(
                f"no client may tell of samples of class '{none}', so it cannot be weighed; lower the floor."
            )
        total = sum(self.labels.values())
        return tuple(total / (len(self.labels) * count) for count in self.labels.values())


def statistics(
    what: Study | Federation,
    *,
    floor: int = 10,
    bins: int = 8,
    quantiles: Quantiles | None = None,
    blocks: int = 100,
    ranges: Sequence[tuple[float, float]] = (),
    **settings: Any,
) -> Statistics:
    """Ask the clients of a study or a federation; `settings` are those of `train`, such as runtime and workers.

    Of a study, the samples are those before any preprocessing, and of its channels `secure-sum` holds here too.
    Nothing leaves a client that fewer than `floor` samples stand behind. Quantiles are from blocks, with secure sums
    from cells.
    """
    channels = settings.get("channels", what.channels if isinstance(what, Study) else ())
    method = FederatedStatistics(
        floor, bins, quantiles or quantiles_with(_secure(stages(channels))), blocks, tuple(ranges), categories_of(what)
    )
    return Statistics.of(train(statistics_study(what, method), **settings))


def categories_of(what: Study | Federation) -> dict[str, tuple[str, ...]]:
    """The columns of texts, and the levels of those for which a study declares them."""
    if isinstance(what, Federation):
        return dict.fromkeys(what.info.categories, ())
    declared = {} if what.preprocessing is None else what.preprocessing.table
    named = what.data.info.categories if isinstance(what.data, Federation) else what.data.categories
    return dict.fromkeys(named, ()) | {name: column.levels for name, column in declared.items() if column.texts}


def declared_columns(table: Mapping[str, Any]) -> dict[str, Column]:
    """What a study's table says of single columns, in [preprocessing.table]."""
    section = table.get("preprocessing")
    return {} if section is None else build(Preprocessing, section, "preprocessing", "[preprocessing]").table


def declared_categories(table: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The columns of texts that a study's table names, and their levels where it declares them."""
    data = table.get("data")
    named = data.get("categories", ()) if isinstance(data, Mapping) else ()
    return dict.fromkeys(named, ()) | {
        n: column.levels for n, column in declared_columns(table).items() if column.texts
    }


def quantiles_with(secure: Sequence[Any]) -> Quantiles:
    """Where quantiles come from with these secure sums, if any: blocks are no sums."""
    return "cells" if secure else "blocks"


def statistics_study(what: Study | Federation, method: FederatedStatistics) -> Study:
    """The question as a study of one round, with the same clients, secure sums and limits for those that fail."""
    return question_study(what, method, "statistics")


def question_study(what: Study | Federation, method: Algorithm, name: str) -> Study:
    """A question about a study's samples, as they are before any preprocessing, in place of its method."""
    if isinstance(what, Federation):
        return Study(method, what, rounds=1, evaluation=_NOTHING)
    data, faults = what.data, what.faults or Faults()
    if isinstance(data, DataSection):
        data = replace(data, standardise=False, seed=what.seed if data.seed is None else data.seed)
    limits = Faults(deadline=faults.deadline, quorum=faults.quorum, at_least=faults.at_least, require=faults.require)
    return Study(
        method,
        data,
        rounds=1,
        evaluation=_NOTHING,
        faults=limits,
        runtime=what.runtime,
        workers=what.workers,
        address=what.address,
        name=f"{name} of {what.title}",
        plugins=what.plugins,
        channels=_secure(stages(what.channels)),
    )


def statistics_table(table: Mapping[str, Any], method: FederatedStatistics) -> dict[str, Any]:
    """The same as a table, for a deployment, whose data are the nodes'."""
    return question_table(table, method, "statistics")


def question_table(table: Mapping[str, Any], method: Algorithm, name: str, rounds: int = 1) -> dict[str, Any]:
    """A question about the nodes' samples in place of the method of a study's table."""
    limits = ("deadline", "quorum", "at_least", "require")
    faults = {name: value for name, value in dict(table.get("faults") or {}).items() if name in limits}
    secure = secure_names(table)
    return {
        "name": f"{name} of {table['name']}" if table.get("name") else name,
        "rounds": rounds,
        "algorithm": {"name": algorithms.name_of(type(method)), **plain(method)},
        "faults": faults,
        "evaluate": plain(_NOTHING),
    } | ({"channels": {"up": secure}} if secure else {})


def secure_names(table: Mapping[str, Any]) -> list[str]:
    """The secure sums among the channels of a study's table; other channels are of its training alone."""
    section = table.get("channels")
    up = section.get("up") if isinstance(section, Mapping) else None
    named = [text for text in up if isinstance(text, str)] if isinstance(up, list | tuple) else []
    return [text for text in named if text.partition("(")[0].strip() == channel_names.name_of(SecureSum)]


def _secure(given: Sequence[Channel]) -> tuple[Channel, ...]:
    return tuple(channel for channel in given if isinstance(channel, SecureSum))


def frozen_table(table: Mapping[str, Any], agreed: Preprocessing) -> dict[str, Any]:
    """A study's table with what was agreed on, in place of what it said itself."""
    kept = {name: value for name, value in table.items() if name not in ("data_fingerprint", "preprocessing")}
    if isinstance(kept.get("data"), Mapping):
        kept["data"] = {name: value for name, value in kept["data"].items() if name != "standardise"}
    written = {name: value for name, value in plain(agreed).items() if value}
    if agreed.table:
        usual = plain(Column())
        written["table"] = {
            name: {key: value for key, value in column.items() if value != usual[key]}
            for name, column in written["table"].items()
        }
    return kept | {"preprocessing": written}


def differences_of(study: Study) -> list[SchemaDifference]:
    """In what the files of a study's folder differ; of other data nothing, they were made alike."""
    data = study.data
    if not isinstance(data, DataSection) or data.folder is None or holds_images(Path(data.folder)):
        return []
    cells = cells_of(data.missing, data.categories, data.dates, data.on_error)
    return schema_differences(folder_schemas(Path(data.folder), data.target, data.kind, data.dtype, cells))


def _features(run: Run) -> list[Feature]:
    sums, cells, reported = run.state["sums"], run.state["cells"], run.state.get("quantiles")
    means, deviations = moments(sums)
    features = []
    for row, (name, target) in enumerate(_names(run)):
        if name in run.task.info.categories and not target:
            continue
        # No less than nothing, whatever a client made up.
        count, counts = max(int(sums["count"][row]), 0), cells["counts"][row].clamp_min(0).numpy()
        edges = cells["edges"][row].numpy()
        fill: float | None = None
        if reported:
            of, values = max(int(reported["of"][row]), 0), reported["values"][row].tolist()
            error = int(reported["off"][row]) / max(of, 1)
            fill = float(reported["fill"][row]) if of and reported["known"][row] else None
        else:
            of, values = int(counts.sum()), cell_quantiles(edges, counts, SHARES).tolist()
            error = min((int(counts.max()) + count - of) / max(count, 1), 1.0)
            fill = values[SHARES.index(0.5)] if of else None
        if (
            positives := _ones(count, sums["first"][row].numpy(), sums["second"][row].numpy(), edges, counts)
        ) is not None:
            of, error = count, 0.0
            values = [float(max(ceil(share * count), 1) > count - positives) for share in SHARES]
            fill = values[SHARES.index(0.5)]
        spread = (
            None if count == 0 else rounded(variance(count, sums["first"][row].numpy(), sums["second"][row].numpy()))
        )
        features.append(
            Feature(
                name,
                count,
                int(sums["missing"][row]),
                float(means[row]) if count else None,
                float(deviations[row]) if count else None,
                spread,
                dict(zip(SHARES, values, strict=True)) if of else {},
                error if of else None,
                fill,
                tuple(edges.tolist()),
                tuple(counts.tolist()),
                int(sums["small"][row]),
                target,
                not target and name in run.task.info.dates,
            )
        )
    return features


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


def _levels(run: Run) -> tuple[dict[str, dict[str, int]], dict[str, int]]:
    """Samples of each level that was reported, and how many samples of each column the levels lack."""
    if "levels" not in run.state:
        return {}, {}
    columns, counts = plain(run.algorithm)["categories"], run.state["levels"]["counts"].clamp_min(0)
    rows = zip(columns, unpacked(run.state["levels"]["names"]), counts.tolist(), strict=True)
    samples = int(run.state["sums"]["rows"])
    return (
        {column: dict(zip(names, each, strict=False)) for column, names, each in rows},
        {column: max(samples - int(each.sum()), 0) for column, each in zip(columns, counts, strict=True)},
    )
