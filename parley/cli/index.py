"""The names a study can choose from, with a line about each, readable without loading what they name.

python -m parley.cli.index      writes index.json and details.json anew, after something has changed; a test compares
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

if TYPE_CHECKING:
    from parley.core.registry import Registry

FILE = Path(__file__).with_name("index.json")
DETAILS = FILE.with_name("details.json")
Index = dict[str, dict[str, str]]


class Details(TypedDict):
    """What `parley list KIND NAME` prints."""

    about: str
    notes: list[str]
    settings: list[list[str]]
    """Name, type, default and explanation of each."""


def index() -> Index:
    """Kind -> name -> summary, other packages' entry points included; one that cannot be loaded says why."""
    listed: Index = json.loads(FILE.read_text(encoding="utf-8"))
    points = entry_points()
    for kind, things in listed.items():
        for point in points.select(group=f"parley.{kind.replace('-', '_')}"):
            things.setdefault(point.name, _of_another_package(point))
    return {kind: dict(sorted(things.items())) for kind, things in listed.items()}


REGISTRIES = {
    "algorithms": "parley.algorithms:algorithms",
    "models": "parley.models:models",
    "partitioners": "parley.data:partitioners",
    "data-sets": "parley.data:datasets",
    "server-optimizers": "parley.algorithms.averaging.server:server_optimizers",
    "channels": "parley.channels:channels",
    "schedules": "parley.training.schedules:schedules",
    "weak-learners": "parley.algorithms.boosting.weak:learners",
    "losses": "parley.training.losses:losses",
    "metrics": "parley.training.metrics:metrics",
    "runtimes": "parley.runtimes:runtimes",
    "kernels": "parley.theory.kernel.registry:kernels",
    "feature-maps": "parley.models:feature_maps",
    "listeners": "parley.engine.observers:listeners",
    "studies": "parley_papers.catalogue:studies",
}


def registry(kind: str) -> Registry[Any]:
    """The registry of a kind; loads what is in it."""
    module, _, name = REGISTRIES[kind].partition(":")
    return cast("Registry[Any]", getattr(import_module(module), name))


def made() -> Index:
    """The index as the code has it, without other packages."""
    index: Index = {}
    for kind in REGISTRIES:
        things = registry(kind)
        index[kind] = {name: summary_of(things[name]) for name in things if _ours(things[name])}
    return index


def details(kind: str, name: str) -> Details:
    """Of one thing; only what is not ours is loaded for it."""
    known: dict[str, dict[str, Details]] = json.loads(DETAILS.read_text(encoding="utf-8"))
    return known[kind].get(name) or details_of(name, registry(kind)[name])


def all_details() -> dict[str, dict[str, Details]]:
    """The details as the code has them, without other packages."""
    return {kind: {name: details_of(name, registry(kind)[name]) for name in names} for kind, names in made().items()}


def details_of(name: str, thing: Any) -> Details:
    """From the thing itself."""
    import inspect
    from dataclasses import is_dataclass

    from parley.core.fields import settings_of, type_text
    from parley.core.numbers import setting_text
    from parley.data import Loader
    from parley.study.data_section import loader_settings
    from parley.study.sections import plain

    about = thing.about if hasattr(thing, "about") else inspect.getdoc(thing) or ""
    settings = settings_of(thing) if is_dataclass(thing) and isinstance(thing, type) else []
    notes = []
    if isinstance(thing, type) and hasattr(thing, "exchanges") and not any(s.required for s in settings):
        from parley.algorithms.exchange import disclosed
        from parley.robust.reading import obstacle as unfolded
        from parley.secure.reading import obstacle

        method = thing()
        if parts := disclosed(method.exchanges()):
            notes.append(f"SENDS THE DATA with these defaults: the server can read {' and '.join(parts)}.")
        for what, reason in (("Secure sums", obstacle(method)), ("Robust folding", unfolded(method))):
            notes.append(f"{what}: {'yes' if reason is None else f'no: {reason}'}")
    if isinstance(thing, Loader):
        notes += [f"Source: {thing.source}", f"License: {thing.license}"]
        settings = loader_settings(name)
    defaults = ["required" if s.required else setting_text(plain(s.default)) for s in settings]
    rows = [
        [s.name, type_text(s.hint), default, " ".join(s.doc.split())]
        for s, default in zip(settings, defaults, strict=True)
    ]
    return {"about": str(about), "notes": notes, "settings": rows}


def summary_of(thing: Any) -> str:
    from parley.core.fields import summary

    return str(thing.about) if hasattr(thing, "about") else summary(thing)


def _ours(thing: Any) -> bool:
    made_by = getattr(thing, "measure", getattr(thing, "load", thing))
    return str(getattr(made_by, "__module__", "")).startswith(("parley.", "parley_papers."))


def _of_another_package(point: Any) -> str:
    try:
        return summary_of(point.load())
    except (Exception, SystemExit) as error:
        return f"broken: {point.value} raises {type(error).__name__}: {error}"


if __name__ == "__main__":
    for file, content in ((FILE, made()), (DETAILS, all_details())):
        file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
