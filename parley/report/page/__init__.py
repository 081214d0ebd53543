"""The report: stored runs as one HTML page that needs no network, written for a colleague to read.

    with RunStore() as store:
        write_report(store, ["last"], "report.html")

Everything in it comes from the store (and, for the picture of who has which labels, from the data where they are at
hand). What the charts show stands in tables too, so the page can be printed and read aloud.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from parley import __version__
from parley.core.errors import InputError, ParleyError
from parley.core.files import write_atomically
from parley.data.federation import Federation
from parley.report.groups import Group, headline_metric, stored_groups
from parley.report.page import sections
from parley.report.page.clients import Names, fairness, roll_call
from parley.report.page.consent import Consents, consent, consents
from parley.report.page.judged import judged
from parley.report.page.markup import embedded, section, text
from parley.report.page.picture import picture
from parley.report.partition_figure import partition_figure
from parley.store.runs import RunStore
from parley.study.seeds import selected
from parley.study.toml import study_from_dict

_NUMBERS = 240_000
"""Numbers in the charts of one page; with more runs each curve has fewer points."""
_MOST_POINTS, _FEWEST_POINTS = 300, 24
_MOST_SERIES = 40
"""Metrics that can be chosen."""
_MOST_CLIENTS = 200
"""Points of each curve of clients."""
_PICTURES = 3
_PICTURED = 12
"""Groups of runs above which no pictures are drawn: loading their data would take longer than all else."""
_LARGEST = 200_000
"""Samples of a federation above which no picture of it is drawn."""


def write_report(
    store: RunStore, runs: Sequence[str], path: Path | str, *, names: bool = False, title: str = "", lead: str = ""
) -> Path:
    """Write the page about these runs, by ids or studies' names (none: all of the store but tuning trials), to `path`.

    `names` shows the clients' names; `lead` is HTML that stands before everything else.
    """
    write_atomically(Path(path), report_page(store, runs, names=names, title=title, lead=lead).encode())
    return Path(path)


def report_page(store: RunStore, runs: Sequence[str], *, names: bool = False, title: str = "", lead: str = "") -> str:
    """The page as text."""
    groups = stored_groups(store, selected(store, runs))
    if not groups:
        raise InputError("there is nothing to report: these runs have recorded nothing yet.")
    return _page(title or _title(groups), groups, names, _results(store.path), consents(store, groups), lead)


def _page(
    title: str, groups: list[Group], names: bool, results: list[dict[str, Any]], deployed: Consents = (), lead: str = ""
) -> str:
    metric, federations = headline_metric(groups), _federations(groups)
    clients = [client for _, federation in federations for client in federation.ids]
    called = Names.of(names, groups, [*clients, *(node for _, facts in deployed for node in facts["nodes"])])
    parts = [
        lead,
        sections.overview(groups, metric, called),
        sections.curves(groups, metric),
        fairness(groups, called),
        judged(groups),
        _partition(groups, federations, called),
        consent(deployed, called),
        roll_call(groups, called),
        sections.privacy(groups),
        sections.checks(results),
        sections.settings(groups),
        sections.rerun(groups),
    ]
    count = sum(len(group.every) for group in groups)
    code = [f"<script>{_asset(name)}</script>" for name in ("uPlot.iife.min.js", "page.js")]
    script = embedded("data", _charts(groups, metric)) + "".join(code)
    return document(title, f"{count} run{'s' if count > 1 else ''}.", parts, script, _asset("uPlot.min.css"))


def document(title: str, lead: str, parts: Sequence[str], script: str = "", style: str = "") -> str:
    """A whole page of sections that needs no network; `script` stands at its end, `style` before the common one."""
    when = datetime.now().strftime("%Y-%m-%d %H:%M")
    made = f"{lead} Made with Parley {__version__} on {when}."
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}{_asset('page.css')}</style></head><body>"
        f"<header><h1>{text(title)}</h1><p>{text(made)}</p></header><main>{''.join(parts)}</main>"
        f"{script}</body></html>"
    )


def _title(groups: list[Group]) -> str:
    names = [group.label for group in groups]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _charts(groups: list[Group], metric: str) -> dict[str, Any]:
    """What the script draws."""
    known = sorted({name for group in groups for name in group.metrics}, key=lambda name: (name != metric, name))
    chosen = known[:_MOST_SERIES]
    judged = next((group.judged_by for group in groups if group.clients), "")
    most = _points(sum(name in group.metrics for group in groups for name in chosen), len(groups))
    made = []
    for group in groups:
        curves = {}
        for name in chosen:
            if name not in group.metrics:
                continue
            curve = group.curve(name, most[name == metric], extremes=True)
            curves[name] = {
                "rounds": curve.rounds.tolist(),
                "megabytes": curve.megabytes.tolist(),
                "seconds": curve.seconds.tolist(),
                "mean": curve.mean.tolist(),
            }
            if len(group.runs) > 1:
                curves[name] |= {"low": curve.low.tolist(), "high": curve.high.tolist()}
        values = np.sort([client.value for client in group.clients if group.judged_by == judged])
        indices = np.unique(
            np.linspace(0, max(0, len(values) - 1), min(len(values), _MOST_CLIENTS)).round().astype(int)
        )
        made.append({"label": group.label, "note": _note(group), "curves": curves, "clients": values[indices].tolist()})
    return {"metric": metric, "metrics": chosen, "judged": judged, "groups": made}


def _note(group: Group) -> str:
    """What a curve's name has beside it."""
    if group.unfinished:
        text = f"{len(group.runs)} of {len(group.every)} seeds"
    else:
        text = group.status if group.status != "finished" else ""
    return ", ".join(filter(None, (text, group.astray)))


def _points(curves: int, groups: int) -> tuple[int, int]:
    """Points of each curve, and of each group's curve of the metric that is shown first, which has half of them all."""
    others, first = (_NUMBERS // 2 // (6 * max(count, 1)) for count in (curves - groups, groups))
    return min(_MOST_POINTS, max(_FEWEST_POINTS, others)), min(_MOST_POINTS, max(_FEWEST_POINTS, first))


def _federations(groups: list[Group]) -> list[tuple[Group, Federation]]:
    """The federations that are drawn: where the data are at hand, each once."""
    seen: set[str] = set()
    federations = []
    for group in groups if len(groups) <= _PICTURED else []:
        key = json.dumps(group.config.get("data"), sort_keys=True, default=str)
        if key in seen or len(seen) == _PICTURES:
            continue
        seen.add(key)
        try:
            federation = study_from_dict(group.config).federation()
            if federation.info.kind == "classification" and federation.sizes().sum() <= _LARGEST:
                federations.append((group, federation))
        except (ParleyError, OSError):
            continue  # made in Python, or the data are elsewhere
    return federations


def _partition(groups: list[Group], federations: list[tuple[Group, Federation]], names: Names) -> str:
    """Who has which labels."""
    if len(groups) > _PICTURED:
        words = f"Not drawn for {len(groups)} studies; a report of at most {_PICTURED} of them draws it."
        return section("partition", "Who has what", f"<p>{text(words)}</p>")
    return section(
        "partition", "Who has what", *(_picture(group, federation, names) for group, federation in federations)
    )


def _picture(group: Group, federation: Federation, names: Names) -> str:
    words = f"Clients of {group.label} across, labels up, larger marks for more samples."
    try:
        return picture(partition_figure(federation, None if names.shown else names.numbers), words)
    except (ParleyError, OSError):
        return ""


def _results(store: Path) -> list[dict[str, Any]]:
    """What studies wrote beside the store they trained in."""
    results = []
    for file in sorted(store.parent.glob("*/*/*.json")):
        try:
            body = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(body, dict) and {"study", "scale", "checks"} <= body.keys():
            results.append(body)
    return results


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
