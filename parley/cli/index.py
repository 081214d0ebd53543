"""The names a study can choose from, with a line about each, readable without loading what they name.

python -m parley.cli.index      writes index.json anew, after something was added or renamed; a test compares
"""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from parley.core.registry import Registry

FILE = Path(__file__).with_name("index.json")
Index = dict[str, dict[str, str]]


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
    "server-optimizers": "parley.algorithms.base.server:server_optimizers",
    "channels": "parley.channels:channels",
    "schedules": "parley.learn.schedules:schedules",
    "weak-learners": "parley.learn.weak:learners",
    "losses": "parley.learn.losses:losses",
    "metrics": "parley.learn.metrics:metrics",
    "runtimes": "parley.runtimes:runtimes",
    "kernels": "parley.theory.kernel.registry:kernels",
    "feature-maps": "parley.models:feature_maps",
    "listeners": "parley.engine.observers:listeners",
    "studies": "parley.studies:studies",
}


def registry(kind: str) -> Registry[Any]:
    """The registry of a kind; loads what is in it."""
    module, _, name = REGISTRIES[kind].partition(":")
    return cast("Registry[Any]", getattr(import_module(module), name))


def made() -> Index:
    """The index as the code has it, without other packages."""
    found: Index = {}
    for kind in REGISTRIES:
        things = registry(kind)
        found[kind] = {name: summary_of(things[name]) for name in things if _ours(things[name])}
    return found


def summary_of(thing: Any) -> str:
    from parley.core.fields import summary

    return str(thing.about) if hasattr(thing, "about") else summary(thing)


def _ours(thing: Any) -> bool:
    made_by = getattr(thing, "measure", getattr(thing, "load", thing))
    return str(getattr(made_by, "__module__", "")).startswith("parley.")


def _of_another_package(point: Any) -> str:
    try:
        return summary_of(point.load())
    except (Exception, SystemExit) as error:
        return f"broken: {point.value} raises {type(error).__name__}: {error}"


if __name__ == "__main__":
    FILE.write_text(json.dumps(made(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
