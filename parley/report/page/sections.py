"""The sections of the report, each from the groups of runs alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from parley.core.checks import shown
from parley.report.groups import Group, flat_settings
from parley.report.page.markup import chart, code, folded, section, table
from parley.report.seed_means import SeedMean
from parley.study.toml_text import to_toml, without_seed

_MOST_ABSENT = 30
_MOST_BEHIND = 12
_MOST_ROWS = 1200
"""Rows of the table of curves, and of clients left behind."""
_MOST_COLUMNS = 6
"""Groups that have a column each in the table of settings; more have a row each."""
_SKIPPED = ("plugin_digests", "data_fingerprint")


def overview(groups: Sequence[Group], metric: str) -> str:
    """One line per group: results, costs, who was missing."""
    rows = [
        (
            group.label,
            *((value(metric, group.last(metric)), value(metric, group.best(metric))) if metric in group.metrics
              else (None, None)),
            group.algorithm, _statuses(group), len(group.runs), max(run.rounds for run in group.runs),
            megabytes(group.total("up/bytes")), megabytes(group.total("down/bytes")), number(group.total("seconds")),
            len(group.absences) or None,
        )
        for group in groups
    ]  # fmt: skip
    heads = (
        "run", "last", "best", "method", "status", "seeds", "rounds", "MB up", "MB down", "seconds", "replies missing",
    )  # fmt: skip
    about = (
        "Means over seeds; ± is half of a 95% interval (Student's t). Megabytes are measured from what was sent, of "
        "all clients together; seconds are training without evaluation."
    )
    caption = f"Last and best {metric}, and costs" if metric else "Costs"
    numeric = (1, 2, *range(5, len(heads)))
    return section("overview", "Overview", table(heads, rows, caption=caption, numeric=numeric), about=about)


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
        '<button id="all" type="button">Show all</button><button id="none" type="button">Hide all</button></div>'
    )
    plot = chart(
        "curves",
        "Curves of the chosen metric; the numbers are in the table below.",
        "Drag to zoom, double-click to zoom out, click a name to hide it. Bands span the seeds.",
    )
    numbers = table(
        ("run", "round", metric, "MB", "seconds"), rows, caption=f"{metric} along the rounds", numeric=(1, 2, 3, 4)
    )
    return section("curves-section", "Curves", controls, plot, folded("The numbers", numbers))


def fairness(groups: Sequence[Group], names: bool) -> str:
    """How clients fare one by one, and who is left behind."""
    rows, behind = [], []
    behind_each = max(1, min(_MOST_BEHIND, _MOST_ROWS // len(groups)))
    for group in groups:
        if group.clients is None:
            continue
        judged = {client: v for client, v in group.clients.values.items() if not np.isnan(v)}
        if not judged:
            continue
        metric = group.clients.metric
        quantiles = [show(metric, v) for v in np.quantile(list(judged.values()), (0, 0.1, 0.5, 0.9, 1))]
        rows.append((group.label, metric, group.clients.round, len(judged), *quantiles))
        worst_is_low = not metric.endswith("/loss")
        order = sorted(judged, key=lambda client: judged[client], reverse=not worst_is_low)
        for place, client in enumerate(order[: min(behind_each, max(1, len(order) // 10))], 1):
            behind.append(
                (group.label, client if names else f"client no. {place} from the end", show(metric, judged[client]))
            )
    if not rows:
        return ""
    spread = table(
        ("run", "metric", "round", "clients", "lowest", "10%", "median", "90%", "highest"), rows,
        caption="Clients on their own held-out samples", numeric=range(2, 9),
    )  # fmt: skip
    plot = chart(
        "clients",
        "Clients sorted by their value; the quantiles are in the table.",
        "Clients sorted from the lowest to the highest value, of each group's first run.",
    )
    worst = folded(
        "Who is left behind: the worst tenth",
        table(("run", "client", "value"), behind, caption="The worst tenth", numeric=(2,)),
    )
    about = "" if names else "Clients are not named here; parley report --names names them."
    return section("clients-section", "Clients", plot, spread, worst, about=about)


def roll_call(groups: Sequence[Group], names: bool) -> str:
    """Who was missing, how often and why."""
    rows = []
    for group in groups:
        count = Counter(one.client for one in group.absences)
        last = {one.client: one for one in group.absences}
        for place, (client, missed) in enumerate(count.most_common(_MOST_ABSENT), 1):
            reason = last[client].reason
            who = client if names else f"client {place}"
            rows.append(
                (group.label, who, missed, last[client].round, reason if names else reason.replace(client, who))
            )
    if not rows:
        nobody = "<p>Everybody who was asked answered, in every round.</p>"
        return section("roll-call", "Roll-call", nobody) if groups else ""
    heads = ("run", "client", "rounds missed", "last", "why, the last time")
    more = sum(max(0, len({one.client for one in group.absences}) - _MOST_ABSENT) for group in groups)
    rest = f"<p>and {more} others; parley runs export RUN missing.csv --failures writes all.</p>" if more else ""
    return section(
        "roll-call",
        "Roll-call",
        table(heads, rows, caption="Replies that did not come, or could not be used", numeric=(2, 3)),
        rest,
    )


def privacy(groups: Sequence[Group]) -> str:
    """What happened to messages on the way, what was promised and what was spent."""
    rows = []
    for group in groups:
        told, channels = group.config.get("privacy"), group.config.get("channels") or {}
        ways = ", ".join(map(str, channels.get("up", []))) if isinstance(channels, Mapping) else ""
        spent = group.last("privacy/epsilon") if "privacy/epsilon" in group.metrics else None
        delta = told.get("delta") if isinstance(told, Mapping) else None
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
    flat = [dict(flat_settings({k: v for k, v in group.config.items() if k not in _SKIPPED})) for group in groups]
    names = sorted({name for own in flat for name in own} - {"seed", "name"})
    differ = [name for name in names if len({shown(own.get(name)) for own in flat}) > 1]
    several = len(groups) > 1
    labels = [group.label for group in groups]
    if len(groups) <= _MOST_COLUMNS:
        heads, rows = ("setting", *labels), [(name, *(_setting(own, name) for own in flat)) for name in differ]
    else:
        heads = ("run", *differ)
        rows = [(label, *(_setting(own, name) for name in differ)) for label, own in zip(labels, flat, strict=True)]
    parts = [table(heads, rows, caption="Settings in which the runs differ")] if differ and several else []
    common = [(name, _setting(flat[0], name)) for name in names if name not in differ] if flat else []
    title = "Settings that all runs share" if several else "All settings"
    return section("settings", "Settings", *parts, folded(title, table(("setting", "value"), common, caption=title)))


def rerun(groups: Sequence[Group]) -> str:
    """Every group's study file and the command that trains it again."""
    parts = []
    for group in groups:
        dealt = len({repr(_data_seed(run.config)) for run in group.runs}) > 1
        study = to_toml(without_seed(group.config) if dealt else group.config)
        if study is None:
            words = "<p>Parts of this study were made in Python and cannot be written as a file.</p>"
        else:
            seeds = sorted({run.seed for run in group.runs if run.seed is not None})
            flag = f" --seeds {','.join(map(str, seeds))}" if len(seeds) > 1 else ""
            words = code(study) + f"<p>Save it as study.toml, then: <code>parley run study.toml{flag}</code></p>"
        parts.append(folded(f"{group.label} ({', '.join(run.id for run in group.runs[:8])})", words))
    return section("rerun", "How to rerun", *parts)


def _data_seed(config: Mapping[str, Any]) -> Any:
    data = config.get("data")
    return data.get("seed") if isinstance(data, Mapping) else None


def checks(results: Sequence[Mapping[str, Any]]) -> str:
    """What studies found that lie beside the store."""
    marks = {True: "holds", False: "FAILS", None: "not judged at this scale"}
    rows = [
        (f"{study['study']} ({study['scale']})", check["name"], shown(check["measured"]),
         f"{check['relation']} {shown(check['expected'])}", marks[check["passed"]])
        for study in results for check in study["checks"]
    ]  # fmt: skip
    heads = ("study", "statement", "measured", "expected", "")
    return section(
        "checks", "Checks of studies", table(heads, rows, caption="Statements and what was measured") if rows else ""
    )


def value(metric: str, mean: SeedMean) -> str:
    half = "" if np.isnan(mean.half) else f" ± {show(metric, mean.half)}"
    return show(metric, mean.value) + half


def show(metric: str, number: float) -> str:
    """A metric's value: accuracies in percent."""
    return f"{100 * number:.2f}%" if metric.endswith("accuracy") else f"{number:.4g}"


def megabytes(value: float | None) -> str | None:
    return None if value is None else f"{value / 1e6:,.3g}" if value < 1e9 else f"{value / 1e6:,.0f}"


def number(value: float | None) -> str | None:
    return None if value is None else f"{value:,.4g}"


def _statuses(group: Group) -> str:
    count = Counter(run.status for run in group.runs)
    return ", ".join(status if times == len(group.runs) else f"{times} {status}" for status, times in count.items())


def _setting(own: Mapping[str, Any], name: str) -> str | None:
    return shown(own[name]) if name in own else None
