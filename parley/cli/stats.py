"""`parley stats`: what all clients' samples look like, before training, and what of it is frozen into the study."""

from __future__ import annotations

from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.cli.options import Csv, Deployment, Json, Set, StudyFile
from parley.cli.screen import console, print_table, write_texts, writing
from parley.core.numbers import percent

if TYPE_CHECKING:
    from parley.data.schema import SchemaDifference
    from parley.statistics.frozen import Feature
    from parley.statistics.method import FederatedStatistics
    from parley.statistics.run import Statistics

_BARS = " ▁▂▃▄▅▆▇█"
_SHOWN = {0.0: "low {}", 0.25: "25%", 0.5: "median", 0.75: "75%", 1.0: "high {}"}


def stats(
    study: StudyFile,
    settings: Set = None,
    floor: Annotated[int, typer.Option("--floor", help="Fewest samples of a client behind anything it sends.")] = 10,
    bins: Annotated[int, typer.Option("--bins", help="Cells of the histograms.")] = 8,
    quantiles: Annotated[
        str | None,
        typer.Option(
            "--quantiles",
            help="From blocks (means of neighbouring values), or from the histograms' cells, which need sums only; "
            "default: cells where the study has the channel secure-sum, else blocks.",
            metavar="NAME",
        ),
    ] = None,
    blocks: Annotated[int, typer.Option("--blocks", help="Most blocks of a client and column.")] = 100,
    ranges: Annotated[
        str | None,
        typer.Option(
            "--range",
            help="A public range of all columns to put the cells into, such as 0,16; default: about the mean.",
            metavar="LOW,HIGH",
        ),
    ] = None,
    freeze: Annotated[
        Path | None,
        typer.Option(
            "--freeze",
            help="Write the study with the normalisation and the label map into this file, beside it.",
            metavar="FILE",
        ),
    ] = None,
    method: Annotated[
        str, typer.Option("--method", help="What is frozen: standard, min-max, robust or none.", metavar="NAME")
    ] = "standard",
    fill: Annotated[
        str | None, typer.Option("--fill", help="Freeze also what missing values become: the mean or the median.")
    ] = None,
    target_method: Annotated[
        str,
        typer.Option(
            "--target-method",
            help="Freeze also a scaling of the regression target, undone in predictions: as --method; default: none.",
            metavar="NAME",
        ),
    ] = "none",
    class_weight: Annotated[
        str | None,
        typer.Option(
            "--class-weight", help="Freeze also weights of the classes in the loss: balanced.", metavar="NAME"
        ),
    ] = None,
    csv: Csv = None,
    json: Json = None,
    server: Deployment = None,
) -> None:
    """Show statistics of all clients' samples: counts, missing values, moments, quantiles, labels, schema differences.

    Clients send sums, each over at least --floor of their samples; with the study's channel secure-sum the server sees
    only the total. With --freeze, training normalises every client's samples by them.
    """
    from parley.core.errors import InputError
    from parley.core.text import printable
    from parley.statistics.run import (
        FILLS,
        METHODS,
        declared_categories,
        declared_columns,
        frozen_table,
        quantiles_with,
        secure_names,
    )
    from parley.study.toml import study_table

    named = ", ".join(METHODS)
    for option, given, known, words in (
        ("--method", method, METHODS, named),
        ("--target-method", target_method, METHODS, named),
        ("--fill", fill, (None, *FILLS), " or ".join(FILLS)),
    ):
        if given not in known:
            raise InputError(f"{option} takes {words}, not '{given}'.")
    for option, chosen in (("--fill", fill), ("--target-method", target_method), ("--class-weight", class_weight)):
        if chosen not in (None, "none") and freeze is None:
            raise InputError(f"{option} is of a frozen study: give --freeze FILE too.")
    table = study_table(study, settings or [])
    secure = secure_names(table)
    if secure and quantiles == "blocks":
        raise InputError(
            "--quantiles blocks shows the server each client's own blocks, which the study's channel secure-sum rules "
            "out: take --quantiles cells."
        )
    asked = _method(floor, bins, quantiles or quantiles_with(secure), blocks, ranges, declared_categories(table))
    if freeze is not None:
        _check_place(freeze, study)
    result = _deployed(server, study, table, asked) if server is not None else _simulated(study, settings or [], asked)
    show(result)
    if secure:
        console().print("The server saw sums of all clients, and no client's own (secure-sum).")
    write_texts((csv, result.csv), (json, result.json))
    if freeze is not None:
        from parley.core.files import write_atomically
        from parley.study.toml import to_toml

        frozen = result.preprocessing(method, fill, declared_columns(table), target_method, class_weight)  # type: ignore[arg-type]
        text = to_toml(frozen_table(table, frozen))
        assert text is not None  # it came from a file
        with writing(freeze):
            write_atomically(freeze, text.encode())
        filled = {name for name, column in frozen.table.items() if column.texts or column.fill is not None}
        gaps = [feature.name for feature in result.features if feature.missing and feature.name not in filled]
        if not frozen.fill and gaps:
            which = ", ".join(map(printable, gaps[:5])) + (" and more" if gaps[5:] else "")
            console().print(
                f"Missing cells of {which} stay missing, which only boosted trees take; other methods need "
                "--fill median or --fill mean.",
                markup=False,
            )
        if frozen.class_weights and result.rare:
            console().print(
                f"The class weights are of {sum(result.labels.values()):,} of {result.samples:,} samples, those of "
                "clients that report all their classes; with a lower --floor they are of more.",
                markup=False,
            )


def _method(
    floor: int, bins: int, quantiles: str, blocks: int, ranges: str | None, categories: dict[str, tuple[str, ...]]
) -> FederatedStatistics:
    from parley.core.errors import InputError
    from parley.statistics.method import FederatedStatistics

    if quantiles not in ("blocks", "cells"):
        raise InputError(f"--quantiles takes blocks or cells, not '{quantiles}'.")
    pairs: Any = ()
    if ranges is not None:
        try:
            low, high = (float(end) for end in ranges.split(","))
        except ValueError:
            raise InputError(f"--range takes two numbers such as 0,16, not '{ranges[:80]}'.") from None
        pairs = ((low, high),)
    return FederatedStatistics(floor, bins, quantiles, blocks, pairs, categories)  # type: ignore[arg-type]


def _check_place(freeze: Path, study: Path) -> None:
    from parley.core.errors import InputError

    if freeze.exists():
        raise InputError(f"{freeze} is there already; remove it, or take another name.")
    if freeze.resolve().parent != study.resolve().parent:
        raise InputError(f"{freeze} must lie beside {study}, to which the study's paths are relative.")


def _simulated(path: Path, settings: list[str], method: FederatedStatistics) -> Statistics:
    from parley.core.errors import InputError
    from parley.statistics.run import Statistics, differences_of, statistics_study
    from parley.study.toml import load_clients
    from parley.study.train import train

    described = load_clients(path, settings)
    asked = statistics_study(described, method)
    differences = differences_of(described)
    try:
        asked.federation()
    except InputError:
        wrong = [difference for difference in differences if not difference.harmless]
        if not wrong:
            raise
        show_differences(differences)
        more = f" ({len(wrong) - 1} more above)" if len(wrong) > 1 else ""
        raise InputError(f"[data] client '{wrong[0].client}' {wrong[0].what}{more}; mend it first.") from None
    result = Statistics.of(train(asked))
    show_differences([difference for difference in differences if difference.harmless])
    return result


def _deployed(folder: Path, path: Path, table: dict[str, Any], method: FederatedStatistics) -> Statistics:
    from parley.cli.deploy import asked_of_nodes
    from parley.statistics.run import Statistics, statistics_table

    return Statistics.of(asked_of_nodes(folder, path, statistics_table(table, method)))


def show(statistics: Statistics) -> None:
    """The features, the labels, and who is in it."""
    missing = any(feature.missing for feature in statistics.features)
    part = statistics.quantiles.removesuffix("s")
    shown = [name.format(part) for name in _SHOWN.values()]
    columns = ["count", *(["missing"] if missing else []), "mean", "std", *shown]
    rows = [
        (
            feature.name,
            feature.count,
            *([feature.missing] if missing else []),
            _value(feature, feature.mean),
            _number(feature.std),
            *[_value(feature, feature.quantiles.get(share)) for share in _SHOWN],
            bars(feature),
        )
        for feature in statistics.features
    ]
    print_table(["column", *columns, "histogram"], rows, right=columns)
    if statistics.levels:
        levels = [
            (name, *feature)
            for name, counts_of_level in statistics.levels.items()
            for feature in counts_of_level.items()
        ]
        print_table(["column", "level", "samples"], levels, right=["samples"])
    if statistics.labels:
        total, counted = (
            max(statistics.samples, 1),
            [*statistics.labels.items(), *([("withheld", statistics.rare)] if statistics.rare else [])],
        )
        print_table(
            ["class", "samples", "share"],
            [(name, count, percent(count / total)) for name, count in counted],
            right=["samples", "share"],
        )
    screen = console()
    for text in notes(statistics):
        screen.print(text, markup=False)


def notes(statistics: Statistics) -> list[str]:
    """What has to be known to read the tables, in sentences."""
    silent = statistics.clients - statistics.contributed - len(statistics.absent)
    sentences = [f"{statistics.samples:,} samples of {statistics.contributed} out of {statistics.clients} clients."]
    if silent:
        sentences.append(f"{silent} sent nothing: fewer than {statistics.floor} samples each (--floor).")
    sentences += [f"Client '{client}' {reason}" for client, reason in statistics.absent.items()]
    for feature in statistics.features:
        if feature.withheld:
            many = f"{feature.withheld} clients have" if feature.withheld > 1 else "One client has"
            sentences.append(
                f"{many} fewer than {statistics.floor} values of '{feature.name}' (--floor) and sent none."
            )
    if statistics.rare:
        sentences.append(
            f"The classes of {statistics.rare:,} samples are withheld: their client has fewer than {statistics.floor} "
            "of some class (--floor), and other classes would give that away. All other numbers include them."
        )
    for name, count in statistics.rare_levels.items():
        if count:
            sentences.append(
                f"The levels of {count:,} samples in '{name}', missing ones among them, are withheld: their client has "
                f"fewer than {statistics.floor} of a level (--floor). A level that no client reports counts as another."
            )
    lacking = max((feature.left_out / feature.count for feature in statistics.features if feature.count), default=0.0)
    if lacking:
        sentences.append(
            f"{'Histograms alone' if statistics.quantiles == 'blocks' else 'Histograms and quantiles'} lack up to "
            f"{percent(lacking)} of a column's values: fewer than {statistics.floor} of a client are in a cell "
            "(--floor)."
        )
    if statistics.quantiles == "blocks":
        sentences.append(
            f"Low and high block: the mean of the lowest and the highest {statistics.floor} or more values of a client "
            "(--floor), not the smallest and the largest value."
        )
    else:
        sentences.append(
            "Low and high cell: where the cells with values begin and end. Quantiles are interpolated in cells, so "
            "but for columns of zeros and ones they need not be values that occur."
        )
    errors = [feature.rank_error for feature in statistics.features if feature.rank_error is not None]
    if errors:
        sentences.append(f"A quantile's rank is off by at most {percent(max(errors))} of the values.")
    return sentences


def show_differences(differences: list[SchemaDifference]) -> None:
    """In what clients differ, and whether it matters."""
    if differences:
        rows = [
            (difference.client, difference.what, "no matter" if difference.harmless else "must be mended")
            for difference in differences
        ]
        print_table(["client", "differs: it", ""], rows)


def bars(feature: Feature) -> str:
    """The histogram in a line, one character a cell."""
    most = max(feature.counts, default=0)
    return "".join(_BARS[-(-8 * count // most)] if most else " " for count in feature.counts)


def _value(feature: Feature, value: float | None) -> str | None:
    """A column's mean or quantile; of dates the day."""
    from parley.data.dates import date_text

    return date_text(value // 1) if feature.date and value is not None else _number(value, feature.std)


def _number(value: float | None, spread: float | None = None) -> str | None:
    """With as many digits as tell it from others of the column."""
    if value is None:
        return None
    digits = 4 + max(floor(log10(abs(value) / spread)), 0) if value and spread else 4
    return f"{value:.{min(digits, 17)}g}"
