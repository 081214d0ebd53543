"""The sections of the report, each from the groups of runs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parley.core.checks import shown
from parley.core.numbers import megabytes, setting_text
from parley.core.text import portable
from parley.report.groups import Group, flat_settings
from parley.report.page.clients import Names
from parley.report.page.markup import chart, code, folded, section, table, text
from parley.report.page.numbers import last_value, number, sent, show, value
from parley.report.same_data import warnings
from parley.study.seeds import without_seed
from parley.study.toml import to_toml

_MOST_ROWS = 1200
"""Rows of the table of curves."""
_MOST_COLUMNS = 6
"""Groups that have a column each in the table of settings; more have a row each."""
_LONGEST = 80
"""Characters of a setting."""
_SKIPPED = ("plugin_digests", "data_fingerprint")


def overview(groups: Sequence[Group], metric: str, names: Names) -> str:
    """One line per group: results, costs, who was missing; which seeds do not count, and why runs ended early."""
    rows = [
        (
            group.label,
            *(
                (last_value(group, metric), value(metric, group.best(metric)))
                if metric in group.metrics
                else (None, None)
            ),
            group.algorithm,
            ", ".join(filter(None, (group.status, group.astray))),
            _seeds(group),
            group.rounds,
            *(sent(group, f"{way}/bytes") for way in ("up", "down")),
            number(group.total("seconds")),
            number(group.missing) if group.missing else None,
        )
        for group in groups
    ]
    heads = (
        "run",
        "last",
        "best",
        "method",
        "status",
        "seeds",
        "rounds",
        "MB up",
        "MB down",
        "seconds",
        "replies missing",
    )
    about = (
        "Megabytes are measured from what was sent, of all clients together; seconds are training without evaluation."
    )
    if any(group.role != "federated" for group in groups):
        about += " Where no model is sent (clients on their own, pooled data) there is a dash."
    if any(len(group.runs) > 1 for group in groups):
        about = f"Means over seeds; ± is half of a 95% interval (Student's t). {about}"
    caption = f"Last and best {metric}, and costs" if metric else "Costs"
    numeric = (1, 2, *range(5, len(heads)))
    results = table(heads, rows, caption=caption, numeric=numeric, stacked=True)
    return section("overview", "Overview", results, _notes(groups, metric), _endings(groups, names), about=about)


def _seeds(group: Group) -> str:
    count, every = len(group.runs), len(group.every)
    return str(count) if count == every else f"{count} of {every}"


def _notes(groups: Sequence[Group], metric: str) -> str:
    """Which groups do not belong together, which seeds do not count, and which studies have no run that finished."""
    words = warnings(groups, metric)
    words += [f"{group.label}: means and curves are without {group.left_out}." for group in groups if group.unfinished]
    open_ones = [group.label for group in groups if group.runs[0].status != "finished"]
    if open_ones:
        words.append(f"Not finished, so the numbers are those until now: {', '.join(open_ones)}.")
    return f"<p>{'<br>'.join(map(text, words))}</p>" if words else ""


def _endings(groups: Sequence[Group], names: Names) -> str:
    rows = [
        (group.label, run.seed, run.status, names.hide(run.ending))
        for group in groups
        for run in group.every
        if run.ending
    ]
    heads = ("run", "seed", "status", "why")
    return table(heads, rows, caption="Why runs ended before their last round", stacked=True) if rows else ""


def curves(groups: Sequence[Group], metric: str) -> str:
    """Where the script draws, and the numbers for those who cannot see them."""
    if not metric:
        return ""
    rows: list[tuple[object, ...]] = []
    rows_each = max(4, min(12, _MOST_ROWS // len(groups)))
    for group in groups:
        if metric in group.metrics:
            curve = group.curve(metric, rows_each)
            rows += [
                (group.label, int(r), show(metric, m), number(mb), number(s))
                for r, m, mb, s in zip(curve.rounds, curve.mean, curve.megabytes, curve.seconds, strict=True)
            ]
    controls = (
        '<div class="controls"><label>Metric <select id="metric"></select></label>'
        "<fieldset><legend>Against</legend>"
        '<label><input type="radio" name="axis" value="rounds" checked> rounds</label>'
        '<label><input type="radio" name="axis" value="megabytes"> megabytes</label>'
        '<label><input type="radio" name="axis" value="seconds"> seconds</label></fieldset>'
        '<label><input type="checkbox" id="log"> logarithmic</label>'
        '<button id="all" type="button">Show all</button><button id="none" type="button">Hide all</button></div>'
    )
    plot = chart(
        "curves",
        "Curves of the chosen metric; the numbers are in the table below.",
        "Drag to zoom, double-click to zoom out, press a name to hide or show it."
        + (" Bands span the seeds." if any(len(group.runs) > 1 for group in groups) else ""),
    )
    numbers = table(
        ("run", "round", metric, "MB", "seconds"), rows, caption=f"{metric} along the rounds", numeric=(1, 2, 3, 4)
    )
    return section(
        "curves-section", "Curves", controls, plot, folded("The numbers", f'<div id="numbers">{numbers}</div>')
    )


def privacy(groups: Sequence[Group]) -> str:
    """What happened to messages on the way, what was promised and what was spent."""
    rows = []
    for group in groups:
        settings, channels = group.config.get("privacy"), group.config.get("channels") or {}
        ways = ", ".join(map(str, channels.get("up", []))) if isinstance(channels, Mapping) else ""
        spent = group.last("privacy/epsilon") if "privacy/epsilon" in group.metrics else None
        delta = settings.get("delta") if isinstance(settings, Mapping) else None
        if not ways and spent is None:
            continue
        raw, up = group.total("up/raw/bytes"), group.total("up/bytes")
        size = f"{100 * up / raw:.3g}% of {megabytes(raw)} MB" if raw and up else None
        sees = "sums with noise only" if spent is not None else "each client's reply, as it was sent"
        epsilon = None if spent is None else f"{spent.value:.4g}" + (f" (delta {delta})" if delta else "")
        rows.append((group.label, ways or None, size, epsilon, sees))
    heads = ("run", "channels", "sent up", "epsilon spent", "what the server could see")
    return section("privacy", "Channels and privacy", table(heads, rows, caption="Messages on the way") if rows else "")


def settings(groups: Sequence[Group]) -> str:
    """In what the groups differ, and what they share."""
    flat = [
        dict(flat_settings(portable({k: v for k, v in group.config.items() if k not in _SKIPPED}))) for group in groups
    ]
    names = sorted({name for of_group in flat for name in of_group} - {"seed", "name"})
    differ = [name for name in names if len({shown(of_group.get(name)) for of_group in flat}) > 1]
    several = len(groups) > 1
    labels = [group.label for group in groups]
    cells = [[_setting(of_group, name) for name in differ] for of_group in flat]
    heads: tuple[str, ...]
    rows: list[tuple[str | None, ...]]
    if len(groups) <= _MOST_COLUMNS:
        heads, rows = ("setting", *labels), list(zip(differ, *cells, strict=True))
    elif len(differ) <= _MOST_COLUMNS:
        heads, rows = ("run", *differ), [(label, *line) for label, line in zip(labels, cells, strict=True)]
    else:
        lines = (
            ", ".join(f"{name} = {cell}" for name, cell in zip(differ, line, strict=True) if cell is not None)
            for line in cells
        )
        heads, rows = ("run", "its settings"), list(zip(labels, lines, strict=True))
    parts = [table(heads, rows, caption="Settings in which the runs differ")] if differ and several else []
    common = [(name, _setting(flat[0], name)) for name in names if name not in differ] if flat else []
    title = "Settings that all runs share" if several else "All settings"
    return section("settings", "Settings", *parts, folded(title, table(("setting", "value"), common, caption=title)))


def rerun(groups: Sequence[Group]) -> str:
    """Every group's study file and the command that trains it again."""
    parts = []
    for group in groups:
        dealt = len({repr(_data_seed(run.config)) for run in group.runs}) > 1
        config = portable(group.config)
        study = to_toml(without_seed(config) if dealt else config)
        if study is None:
            words = "<p>Parts of this study were made in Python and cannot be written as a file.</p>"
        else:
            seeds = sorted({run.seed for run in group.every if run.seed is not None})
            flag = f" --seeds {','.join(map(str, seeds))}" if len(seeds) > 1 else ""
            beside = "" if config == group.config else ", with the folders and files that it names beside it"
            words = (
                code(study) + f"<p>Save it as study.toml{beside}, then: <code>parley run study.toml{flag}</code></p>"
            )
        parts.append(folded(f"{group.label} ({', '.join(run.id for run in group.every[:8])})", words))
    return section("rerun", "How to rerun", *parts)


def _data_seed(config: Mapping[str, Any]) -> Any:
    data = config.get("data")
    return data.get("seed") if isinstance(data, Mapping) else None


def checks(results: Sequence[Mapping[str, Any]]) -> str:
    """What studies found that lie beside the store."""
    marks = {True: "holds", False: "FAILS", None: "not judged at this scale"}
    rows = [
        (
            f"{study['study']} ({study['scale']})",
            check["name"],
            shown(check["measured"]),
            f"{check['relation']} {shown(check['expected'])}",
            marks[check["passed"]],
        )
        for study in results
        for check in study["checks"]
    ]
    heads = ("study", "statement", "measured", "expected", "")
    return section(
        "checks", "Checks of studies", table(heads, rows, caption="Statements and what was measured") if rows else ""
    )


def _setting(settings: Mapping[str, Any], name: str) -> str | None:
    """As a study file has it, shortened."""
    value = settings.get(name)
    if value is None:
        return None
    brief = f"{value:g}" if isinstance(value, float) else ""
    text = brief if brief and float(brief) == value and abs(value) >= 1e6 else setting_text(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 20]}... ({len(text)} characters)"
