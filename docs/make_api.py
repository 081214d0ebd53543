"""Writes docs/api/*.md, a page per room with its public names (`parley/__init__.pyi`), whenever the site is built."""

from __future__ import annotations

import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import parley

ROOMS = {
    "study": "Studies: describe, train, load, compare",
    "algorithms": "Algorithms, and what they are made of",
    "channels": "Channels",
    "privacy": "Differential privacy",
    "secure": "Secure sums",
    "robust": "Robust folding",
    "statistics": "Federated statistics",
    "analyse": "Regression and survival analysis",
    "sklearn": "scikit-learn estimators",
    "data": "Data and federations",
    "models": "Models",
    "training": "Local training, losses, metrics",
    "engine": "Runs, sampling, evaluation, faults, listeners",
    "display": "Loggers",
    "store": "The run store",
    "report": "Reports, figures and tables",
    "tuning": "Tuning",
    "advise": "Advice: heterogeneity, gain, step sizes",
    "attack": "Attacks on what is sent",
    "conformance": "Conformance: fixed points and special cases",
    "core": "Messages, keys, trees, errors",
}
"""Rooms of the house, in the order of the site."""
INTRODUCTION = """\
# API reference

`import parley as pl`, then `pl.NAME`: these are the public names. A room's own functions are written with the room,
`pl.data.digits()`. Settings of algorithms and models are also in [configuration](../configuration.md).
"""


def write_pages(folder: Path) -> None:
    """The index, a page per room and one for the theory; pages that are right already are left alone."""
    folder.mkdir(exist_ok=True)
    pages = {room: _room(room, title) for room, title in ROOMS.items()} | {"theory": _theory()}
    contents = "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```", ""])
    for name, text in (pages | {"index": f"{INTRODUCTION}\n{contents}"}).items():
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def names_of(room: str) -> list[str]:
    """What a room offers: public names of the package, then those that are reached through the room."""
    public = [name for name, home in parley._HOME.items() if home.split(".")[1:2] == [room]]
    module = import_module(f"parley.{room}")
    things = {id(getattr(parley, name)) for name in public}
    of_room = [f"{room}.{name}" for name in getattr(module, "__all__", ()) if id(getattr(module, name)) not in things]
    return [*public, *of_room]


def _room(room: str, title: str) -> str:
    described = inspect.getdoc(import_module(f"parley.{room}")) or ""
    parts = [f"# {title}\n", f"{described.splitlines()[0]}\n"]
    return "\n".join([*parts, *(_directive(name) for name in names_of(room))])


def _directive(name: str) -> str:
    thing = parley
    for part in name.split("."):
        thing = getattr(thing, part)
    kind = (
        "autoclass"
        if isinstance(thing, type)
        else "automodule"
        if inspect.ismodule(thing)
        else "autofunction"
        if inspect.isroutine(thing)
        else "autodata"
    )
    full = thing.__name__ if inspect.ismodule(thing) else f"parley.{name}"
    more = "\n   :no-value:" if kind == "autodata" else ""
    return f"```{{eval-rst}}\n.. {kind}:: {full}{more}\n```\n"


def _theory() -> str:
    """Every module of parley.theory with what is defined in it; of a package its introduction."""
    parts = ["# Theory\n\nPure functions over NumPy arrays in float64; nothing here needs torch.\n"]
    for module in pkgutil.walk_packages(import_module("parley.theory").__path__, "parley.theory."):
        options = "   :no-members:\n" if module.ispkg else "   :ignore-module-all:\n"
        parts.append(f"## {module.name}\n\n```{{eval-rst}}\n.. automodule:: {module.name}\n{options}```\n")
    return "\n".join(parts)
