"""A comparison for other programs: one row per run as CSV or Parquet, one per group as LaTeX, everything as JSON."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parley.core.errors import InputError, nearest
from parley.core.files import replacing, write_atomically
from parley.core.numbers import amount
from parley.core.text import csv_text, printable
from parley.report.compare import Comparison, Line
from parley.report.comparison_table import BOLD, COSTS, NOT_BOLD, p_text
from parley.report.groups import Contender, Reached
from parley.store.tables import needed
from parley.study.seeds import SeedMean

if TYPE_CHECKING:
    from pandas import DataFrame


def to_json(comparison: Comparison, path: Path | str | None = None) -> str:
    """Everything: runs with curves and clients, groups, tests; a run that missed the target has `"reached": null`."""
    runs = []
    for line in comparison.lines:
        for run, reached in zip(line.group.runs, line.reached, strict=True):
            rounds, values, megabytes, seconds = (column.tolist() for column in run.curve(comparison.metric))
            curve = {"rounds": rounds, "values": values, "megabytes": megabytes, "seconds": seconds}
            entry = _summary(comparison, line, run) | {"reached": None if reached is None else asdict(reached)}
            runs.append(entry | {"curve": curve, "clients": run.clients})
    groups = [
        {
            "group": line.label,
            "runs": [run.id or run.label for run in line.group.runs],
            "last": line.last.plain(),
            "best": line.best.plain(),
            "reached": len(line.successes),
            "left_out": [
                {"run": run_left_out.id, "seed": run_left_out.seed, "status": run_left_out.status}
                for run_left_out in line.group.unfinished
            ],
            **{f"{what}_to_target": _plain(line.cost(what)) for what in COSTS},
        }
        for line in comparison.lines
    ]
    pairs = [asdict(pair) | {"difference": pair.difference.plain()} for pair in comparison.pairs]
    head = {
        "metric": comparison.metric,
        "target": comparison.target,
        "target_is": comparison.reason,
        "warnings": list(comparison.warnings),
    }
    return _written(json.dumps(_without_nan(head | {"groups": groups, "pairs": pairs, "runs": runs}), indent=1), path)


def to_csv(comparison: Comparison, path: Path | str | None = None) -> str:
    """One row per run, with empty cells where it missed the target."""
    return _written(csv_text(_rows(comparison)), path)


def to_frame(comparison: Comparison) -> DataFrame:
    """The rows of the CSV file as a pandas DataFrame."""
    frame: DataFrame = needed("pandas", "data frames need the package pandas; install it.").DataFrame(_rows(comparison))
    return frame


def to_parquet(comparison: Comparison, path: Path | str) -> None:
    """The rows of the CSV file; needs pyarrow."""
    arrow = needed("pyarrow", "Parquet needs the package pyarrow; install it or export to a .csv file.")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    with replacing(Path(path)) as part:
        parquet.write_table(arrow.Table.from_pylist(_rows(comparison)), part)


def to_latex(comparison: Comparison, path: Path | str | None = None) -> str:
    """A table for a paper, one row per group, with the packages booktabs; the comment above it says what it shows."""
    reached = comparison.target_text
    heads = ("", "seeds", "last", "best", "rounds", "MB", "s")
    rows = [" & ".join(_tex(head) for head in heads) + r" \\", r"\midrule"]
    for line in comparison.lines:
        last = _tex_mean(comparison, line.last)
        cells = [_tex(line.label), str(len(line.group.runs)), last]
        if line.group is comparison.winner:
            cells[-1] = rf"\textbf{{{last}}}"
        cells += [_tex_mean(comparison, line.best), *(_tex_cost(line, what) for what in COSTS)]
        rows.append(" & ".join(cells) + r" \\")
    words = f"{comparison.metric_words}; rounds, MB and s to reach {reached} ({comparison.reason})"
    body = [f"% {sentence}" for sentence in comparison.warnings]
    body += [f"% {printable(words)}; means over seeds, half of 95% intervals."]
    body += [f"% {BOLD if comparison.winner is not None else NOT_BOLD}."]
    if any(0 < len(line.successes) < len(line.reached) for line in comparison.lines):
        body += ["% (1/3): one of three seeds reached it, and the costs are those of the seeds that did."]
    body += [r"\begin{tabular}{lrrrrrr}", r"\toprule"]
    body += [rf"& & & & \multicolumn{{3}}{{c}}{{to reach {_tex(reached)}}} \\", r"\cmidrule(lr){5-7}", *rows]
    body += [r"\bottomrule", r"\end{tabular}"]
    for pair in comparison.pairs:
        names = f"{printable(pair.first)} - {printable(pair.second)}"
        body.append(
            f"% {names}: {pair.difference.value:+.4g} over {len(pair.seeds)} seeds, p = {p_text(pair.t)} "
            f"(Holm {p_text(pair.corrected)}, sign flips {p_text(pair.flips)})"
        )
    return _written("\n".join(body) + "\n", path)


WRITERS: dict[str, Callable[[Comparison, Path], object]] = {
    ".csv": to_csv,
    ".json": to_json,
    ".parquet": to_parquet,
    ".tex": to_latex,
}
"""The ending of a file's name -> what writes it."""
FORMATS = {"csv": ".csv", "json": ".json", "parquet": ".parquet", "latex": ".tex"}


def write(comparison: Comparison, path: Path) -> None:
    """Write the comparison in the format that the file's name says."""
    if path.suffix not in WRITERS:
        raise InputError(f"{path} must end in one of {', '.join(WRITERS)}.")
    WRITERS[path.suffix](comparison, path)


def destination(out: Path | None, format: str | None) -> Path | None:
    """The file that --out and --export together name; None if neither says anything."""
    if format is not None and format not in FORMATS:
        raise InputError(f"a comparison cannot be exported as '{format}': {nearest(format, FORMATS)}")
    suffix = "" if format is None else FORMATS[format]
    if out is None:
        return Path(f"comparison{suffix}") if suffix else None
    if str(out) == "-":
        raise InputError(f"numbers go to a file, not to standard output; name one that ends in {', '.join(WRITERS)}.")
    if suffix and out.suffix not in ("", suffix):
        raise InputError(f"{out} ends in {out.suffix}, but {format} is to be written; end it in {suffix}.")
    return out if out.suffix else out.with_name(out.name + suffix)


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    rows = []
    for line in comparison.lines:
        for run, reached in zip(line.group.runs, line.reached, strict=True):
            row = _summary(comparison, line, run) | {"metric": comparison.metric, "target": comparison.target}
            rows.append(row | _to_target(reached))
    return rows


def _to_target(reached: Reached | None) -> dict[str, Any]:
    return {f"{what}_to_target": None if reached is None else getattr(reached, what) for what in COSTS}


def _summary(comparison: Comparison, line: Line, run: Contender) -> dict[str, Any]:
    metric = comparison.metric
    known = [value for value in run.clients.values() if not np.isnan(value)]
    low, median, high = np.quantile(known, (0.1, 0.5, 0.9)).tolist() if known and line.quantiles else (None,) * 3
    sent = run.total("up/bytes")
    return {
        "run": run.id or run.label, "label": line.label, "seed": run.seed, "algorithm": run.algorithm, "role": run.role,
        "status": run.status, "last": run.last(metric), "best": run.best(metric), "rounds": run.rounds,
        "megabytes": (sent + run.total("down/bytes")) / 1e6, "seconds": run.total("seconds"),
        "up_megabytes": sent / 1e6,
        "up_megabytes_without_channels": run.total("up/raw/bytes") / 1e6 if "up/raw/bytes" in run.series else None,
        "clients_worst": line.worst, "clients_10": low, "clients_50": median, "clients_90": high,
        "over_clients": run.coverage.get(metric), "trial_of": run.trial or None, "failures": run.failures,
    }  # fmt: skip


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(char, char) for char in printable(text))


def _tex_mean(comparison: Comparison, mean: SeedMean) -> str:
    if math.isnan(mean.value):
        return "--"
    half = "" if math.isnan(mean.half) else rf" $\pm$ {_tex(comparison.show(mean.half))}"
    return _tex(comparison.show(mean.value)) + half


def _tex_cost(line: Line, what: str) -> str:
    mean = line.cost(what)
    if mean is None or (what == "megabytes" and line.group.role != "federated"):
        return "--"
    value = f"{mean.value:,.0f}" if what == "round" and mean.value.is_integer() else amount(mean.value)
    part = "" if len(line.successes) == len(line.reached) else f" ({len(line.successes)}/{len(line.reached)})"
    return value + ("" if math.isnan(mean.half) else rf" $\pm$ {amount(mean.half)}") + part


def _plain(mean: SeedMean | None) -> dict[str, Any] | None:
    return None if mean is None else mean.plain()


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinities."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _written(text: str, path: Path | str | None) -> str:
    if path is not None:
        write_atomically(Path(path), text.encode())
    return text
