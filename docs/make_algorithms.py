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
from parley.algorithms.exchange import disclosed
from parley.conformance import cases
from parley.core.fields import settings_of
from parley.secure.reading import obstacle

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from pages import rows  # noqa: E402

from parley_papers.versions import titled  # noqa: E402

MADE = "<!-- Made by docs/make_algorithms.py from the code; do not edit. -->"
FACTS: dict[str, dict[str, Any]] = tomllib.loads((DOCS / "algorithms.toml").read_text(encoding="utf-8"))
FACTS_SHOWN = ("settles", "traffic", "remembers")
FEWEST_SHARED = 3
_configuration = runpy.run_path(str(DOCS / "make_configuration.py"))

INTRODUCTION = f"""\
# Algorithms

{MADE}

Each method has a page with its pseudo-code, settings, traffic and fixed point; [choose a method](choose.md) says which
to take. Fixed points and special cases are checked by `parley conformance` ([conformance](conformance.md)). The last
column says whether [secure sums](secure-sums.md) take the method with its defaults; the reason for a "no" is on its
page (`statistics` can be summed with `quantiles = "cells"`). Methods send no samples unless their page says SENDS THE
DATA, but replies can reveal some ([attacks](attacks.md)). To write your own: [extending](extending.md).
"""

AFTER = """\
"True optimum" under partial participation needs uniform weights or `cohort.scheme = "unbiased"`: cohorts whose size
weights are scaled to sum to one estimate the population's mean with a bias, whatever the method.

## Methods that are settings of FedALS

Parts of the model with the period "never" stay with each client, parameters and statistics. Patterns match names in
`model.named_parameters()`.

```python
import parley as pl
from torch import nn

federation = pl.data.digits().split(pl.Dirichlet(0.5), clients=8, seed=0)
mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
normalised = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

fedper = pl.FedALS(lr=0.1, steps=5, periods={"3.*": "never"})  # a personal head
lg_fedavg = pl.FedALS(lr=0.1, steps=5, alpha="never")  # a personal representation under a common head
fedbn = pl.FedALS(lr=0.1, steps=5, batch=0, periods={"2.*": "never"})  # personal normalisations

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
        return (
            module != "parley.algorithms.averaging.local_update",
            module,
            list(vars(sys.modules[module])).index(algorithms[name].__name__),
        )

    return sorted((name for name in algorithms if algorithms[name].__module__.startswith("parley.")), key=place)


@cache
def _summable(name: str) -> str:
    reason = obstacle(algorithms[name]())
    return "yes" if reason is None else f"no: {reason.rstrip('.')}"


def overview() -> str:
    head = ("method", "settles at (quadratics, exact gradients)", "traffic, FedAvg = 1", "a client remembers", "summed")
    body = (
        [
            f"[`{name}`](algorithms/{name}.md)",
            *(FACTS.get(name, {}).get(key, "") for key in FACTS_SHOWN),
            _summable(name).partition(":")[0],
        ]
        for name in ours()
    )
    toctree = ["```{toctree}", ":hidden:", ":glob:", "", "algorithms/*", "```", ""]
    return "\n".join([INTRODUCTION, rows(head, body), AFTER, *toctree])


def page(name: str, statements: list[str]) -> str:
    """One algorithm."""
    cls, facts = algorithms[name], FACTS.get(name, {})
    paper, _, pseudo_code = (inspect.getdoc(sys.modules[cls.__module__]) or "").partition("\n\n")
    public = next((known for known in parley.__all__ if getattr(parley, known) is cls), None)
    from_python = f"`pl.{public}` in Python. " if public else ""
    parts = [f"# {name}\n\n{MADE}\n\n{inspect.getdoc(cls)}\n"]
    if "when" in facts:
        parts.append(f"**When to use it.** {facts['when']}\n")
    parts += [facts_line(name, facts), "## Pseudo-code\n"]
    first = next(each for each in ours() if algorithms[each].__module__ == cls.__module__)
    if name != first:
        parts.append(f"That of [{first}]({first}.md#pseudo-code).\n")
    else:
        parts.append(f"{' '.join(paper.split())}\n")
        if pseudo_code.strip():
            parts.append(pseudo_code.strip("\n") + "\n")
    module = cls.__module__.replace(".", "/")
    parts += [f"{from_python}The code: `{module}.py`.\n", "## Settings\n", settings(name)]
    if statements:
        parts.append(f"## Checked by conformance\n\n`parley conformance {name}`: {'; '.join(_grouped(statements))}.\n")
    return "\n".join(parts)


def facts_line(name: str, facts: dict[str, Any]) -> str:
    """What it settles at, sends, keeps and discloses, and which studies train it."""
    cls = algorithms[name]
    required = any(setting.required for setting in settings_of(cls))
    readable = () if required else disclosed(cls().exchanges())  # type: ignore[attr-defined]
    shown = {
        "Settles at": facts.get("settles", ""),
        "Traffic, FedAvg = 1": facts.get("traffic", ""),
        "A client remembers": facts.get("remembers", ""),
        "SENDS THE DATA": f"the server can read {' and '.join(readable)} off single replies" if readable else "",
        "[Secure sums](../secure-sums.md)": "" if _summable(name) == "yes" else _summable(name),
        "[Studies](../reproduction.md)": ", ".join(f"`{titled(study)}`" for study in facts.get("studies", ())),
    }
    lines = [f"- {title}: {fact.replace('](', '](../')}." for title, fact in shown.items() if fact]
    return "\n".join([*lines, ""])


def settings(name: str) -> str:
    """Its settings; those of a method shown before are linked."""
    fields, nearest = settings_of(algorithms[name]), _relative(name)
    if nearest is None:
        return _configuration["table"](fields) if fields else "It has no settings.\n"
    shared = _shared(name, nearest)
    shown = [setting for setting in fields if setting.name not in shared]
    page = f"[{nearest}]({nearest}.md#settings)"
    if len(shared) == len(settings_of(algorithms[nearest])) and not shown:
        return f"Its settings are those of {page}.\n"
    names = ", ".join(f"`{each}`" for each in shared)
    table = _configuration["table"](shown) + "\n" if shown else ""
    return f"{table}As in {page}: {names}.\n"


def _grouped(statements: list[str]) -> list[str]:
    """The statements; of those in a row that begin alike the beginning is said once."""
    groups: list[tuple[str, list[str]]] = []
    for statement in statements:
        head, _, rest = statement.partition(", ")
        if groups and groups[-1][0] == head:
            groups[-1][1].append(rest)
        else:
            groups.append((head, [rest]))
    return [head + f" ({'; '.join(each or 'plain' for each in rest)})" * any(rest) for head, rest in groups]


@cache
def _relative(name: str) -> str | None:
    """The method before it, with a full table, that it shares most settings with; None below half of them, or three."""
    before = [other for other in ours()[: ours().index(name)] if _relative(other) is None]
    nearest = max(before, key=lambda other: len(_shared(name, other)), default=None)
    fewest = max(FEWEST_SHARED, len(settings_of(algorithms[name])) / 2)
    return nearest if nearest and len(_shared(name, nearest)) >= fewest else None


def _shared(name: str, other: str) -> list[str]:
    """The settings that both have, with the same default and meaning."""
    known = {setting.name: setting for setting in settings_of(algorithms[other])}
    return [s.name for s in settings_of(algorithms[name]) if _configuration["_same"](s, known.get(s.name))]


if __name__ == "__main__":
    (DOCS / "algorithms").mkdir(exist_ok=True)
    for path, text in pages().items():
        (DOCS / path).write_text(text, encoding="utf-8")
