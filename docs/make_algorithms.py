"""Writes docs/algorithms.md and a page for each algorithm, docs/algorithms/NAME.md.

    python docs/make_algorithms.py

They are made from the algorithms' docstrings and settings, the list of what conformance checks, and
docs/algorithms.toml (when to use a method, where it settles, what it sends). A test compares the pages with the code,
so run this after changing an algorithm.
"""

from __future__ import annotations

import inspect
import runpy
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import parley
from parley.algorithms import algorithms
from parley.algorithms.base.exchange import disclosed
from parley.core.fields import settings_of
from parley.engine.secure.round import obstacle
from parley.studies.conformance import cases

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from pages import rows  # noqa: E402

MADE = "<!-- Made by docs/make_algorithms.py from the code; do not edit. -->"
FACTS: dict[str, dict[str, Any]] = tomllib.loads((DOCS / "algorithms.toml").read_text(encoding="utf-8"))
FACTS_SHOWN = ("settles", "traffic", "remembers")
FAMILY = "local-update"
_configuration = runpy.run_path(str(DOCS / "make_configuration.py"))

INTRODUCTION = f"""\
# Algorithms

{MADE}

Each method has a page: when to use it, its pseudo-code next to the paper, settings, traffic, what can be read off its
messages, the point it settles at, and the studies that show it at work. What is said about fixed points and special
cases is checked by `parley conformance`, see [conformance.md](conformance.md); a file of your own is a method like any
other, see [extending.md](extending.md).
"""

AFTER = """\
"True optimum" under partial participation needs uniform weights or `cohort.scheme = "unbiased"`: cohorts whose size
weights are scaled to sum to one estimate the population's mean with a bias, whatever the method.

## Methods that are settings of FedALS

A part of the model with the period "never" stays with each client: it does not travel, neither its parameters nor its
statistics. Patterns are matched with the names of parameters (`model.named_parameters()`).

```python
import parley as pl
from torch import nn

federation = pl.data.digits().split(pl.Dirichlet(0.5), clients=8, seed=0)
mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
normalised = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

fedper = pl.FedALS(lr=0.1, steps=5, periods={"3.*": "never"})  # a head of one's own
lg_fedavg = pl.FedALS(lr=0.1, steps=5, alpha="never")  # a representation of one's own under a common head
fedbn = pl.FedALS(lr=0.1, steps=5, batch=0, periods={"2.*": "never"})  # normalisations of one's own

runs = {
    "FedPer": pl.train(fedper, federation, model=mlp, rounds=5),
    "LG-FedAvg": pl.train(lg_fedavg, federation, model=mlp, rounds=5),
    "FedBN": pl.train(fedbn, federation, model=normalised, rounds=5),
}
```

FedPer is Arivazhagan et al. (2019), LG-FedAvg Liang et al. (2020), FedBN Li et al. (ICLR 2021).
"""


def pages() -> dict[str, str]:
    """All pages by their path under docs/."""
    statements: dict[str, list[str]] = {}
    for case in cases():
        statements.setdefault(case.method, []).append(case.statement)
    made = {f"algorithms/{name}.md": page(name, statements.get(name, [])) for name in ours()}
    return {"algorithms.md": overview()} | made


def ours() -> list[str]:
    """Parley's own algorithms: the family most others build on first, then file by file as they are written."""

    def place(name: str) -> tuple[bool, str, int]:
        module = algorithms[name].__module__
        return module != "parley.algorithms.local_update", module, inspect.getsourcelines(algorithms[name])[1]

    return sorted((name for name in algorithms if algorithms[name].__module__.startswith("parley.")), key=place)


SECURE_SUMS = """\
## Which methods run with secure sums

As each declares itself, with its defaults ([secure-sums.md](secure-sums.md)).
`statistics` can be summed with `quantiles = "cells"`.

"""


def secure_sums() -> str:
    """A row for every method."""
    return SECURE_SUMS + rows(("method", "secure sums"), ([f"`{name}`", _summable(name)] for name in ours()))


@cache
def _summable(name: str) -> str:
    reason = obstacle(algorithms[name]())
    return "yes" if reason is None else f"no: {reason.rstrip('.')}"


def overview() -> str:
    head = ("method", "settles at (quadratics, exact gradients)", "traffic, FedAvg = 1", "a client remembers")
    body = (
        [f"[`{name}`](algorithms/{name}.md)", *(FACTS.get(name, {}).get(key, "") for key in FACTS_SHOWN)]
        for name in ours()
    )
    toctree = ["```{toctree}", ":hidden:", "", *(f"algorithms/{name}" for name in ours()), "```", ""]
    return "\n".join([INTRODUCTION, rows(head, body), AFTER, secure_sums(), *toctree])


def page(name: str, statements: list[str]) -> str:
    """One algorithm."""
    cls, facts = algorithms[name], FACTS.get(name, {})
    paper, _, pseudo_code = (inspect.getdoc(sys.modules[cls.__module__]) or "").partition("\n\n")
    public = next((known for known in parley.__all__ if getattr(parley, known) is cls), None)
    from_python = f"`pl.{public}` in Python. " if public else ""
    parts = [f"# {name}\n\n{MADE}\n\n{inspect.getdoc(cls)}\n"]
    if "when" in facts:
        parts.append(f"**When to use it.** {facts['when']}\n")
    parts += [table(name, facts), "## Pseudo-code\n", f"{' '.join(paper.split())}\n"]
    if pseudo_code.strip():
        parts.append(pseudo_code.strip("\n") + "\n")
    place = cls.__module__.replace(".", "/")
    parts += [f"{from_python}The code: `{place}.py`.\n", "## Settings\n", settings(name)]
    if statements:
        parts.append("## Checked by conformance\n\n" + "".join(f"- {one}\n" for one in statements))
        parts.append(f"```sh\nparley conformance {name}\n```\n")
    return "\n".join(parts)


def table(name: str, facts: dict[str, Any]) -> str:
    """What it settles at, sends, keeps and gives away, and where it can be seen."""
    cls = algorithms[name]
    required = any(setting.required for setting in settings_of(cls))
    readable = () if required else disclosed(cls().exchanges())  # type: ignore[attr-defined]
    told = (
        f"SENDS THE DATA: the server can read {' and '.join(readable)} off single replies"
        if readable
        else "replies hold no samples as such, but what they hold can give some away"
    )
    rows = [("Settles at", "settles"), ("Traffic, FedAvg = 1", "traffic"), ("A client remembers", "remembers")]
    lines = [f"| {title} | {facts[key].replace('](', '](../')} |" for title, key in rows if key in facts]
    lines.append(f"| Privacy | {told} ([attacks](../attacks.md), [differential privacy](../privacy.md)) |")
    lines.append(f"| [Secure sums](../secure-sums.md) | {_summable(name)} |")
    if facts.get("studies"):
        shown = ", ".join(f"`{study}`" for study in facts["studies"])
        lines.append(f"| Studies | {shown} ([reproduction status](../reproduction.md)) |")
    return "\n".join(["| | |", "| --- | --- |", *lines, ""])


def settings(name: str) -> str:
    """Its settings; a member of the family shows what it changes."""
    head, cls = algorithms[FAMILY], algorithms[name]
    known = {} if cls is head or not issubclass(cls, head) else {s.name: s for s in settings_of(head)}
    own = [s for s in settings_of(cls) if not _configuration["_same"](s, known.get(s.name))]
    shown = _configuration["table"](own) if own else ""
    if len(own) < len(settings_of(cls)):
        others = "The other settings are" if own else "Its settings are"
        shown += f"\n{others} those of [{FAMILY}]({FAMILY}.md#settings).\n"
    return shown or "It has no settings.\n"


if __name__ == "__main__":
    (DOCS / "algorithms").mkdir(exist_ok=True)
    for path, text in pages().items():
        (DOCS / path).write_text(text, encoding="utf-8")
