"""`parley list`: what can be chosen in a study, with its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Annotated, Any, Optional

import typer

from parley.cli.screen import console, plain_value, print_table
from parley.core.errors import InputError, nearest


def show(
    kind: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            help="algorithms, models, partitioners, data-sets, server-optimizers, schedules, losses, runtimes, "
            "kernels, feature-maps or studies.",
            metavar="[KIND]",
        ),
    ] = None,
    name: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="One of them, to see its settings.", metavar="[NAME]"),
    ] = None,
) -> None:
    """List what a study can choose from, or the settings of one choice."""
    kinds = _kinds()
    if kind is None:
        for each, load in kinds.items():
            console().print(f"[bold]{each}[/bold]: {', '.join(load())}", soft_wrap=True)
        return
    chosen = kind.lower().replace(" ", "-").replace("_", "-")
    chosen = "data-sets" if chosen in ("data", "datasets") else chosen
    if chosen not in kinds:
        raise InputError(f"there is no list of '{kind}': {nearest(chosen, kinds)}")
    registry = kinds[chosen]()
    if name is None:
        print_table([chosen, ""], [(each, _summary(thing)) for each, thing in registry.items()])
    else:
        if name not in registry:
            raise InputError(f"there is no '{name}' among the {chosen}: {nearest(name, registry)}")
        _settings(name, registry[name])


def _kinds() -> dict[str, Callable[[], Mapping[str, Any]]]:
    def algorithms() -> Mapping[str, Any]:
        from parley.algorithms import algorithms

        return {name: algorithms[name] for name in algorithms}

    def models() -> Mapping[str, Any]:
        from parley.models import models

        return {name: models[name] for name in models}

    def partitioners() -> Mapping[str, Any]:
        from parley.data import partitioners

        return {name: partitioners[name] for name in partitioners}

    def data_sets() -> Mapping[str, Any]:
        from parley.data import datasets

        return {name: datasets[name] for name in datasets}

    def server_optimizers() -> Mapping[str, Any]:
        from parley.algorithms.base.server import server_optimizers

        return {name: server_optimizers[name] for name in server_optimizers}

    def schedules() -> Mapping[str, Any]:
        from parley.learn.schedules import schedules

        return {name: schedules[name] for name in schedules}

    def kernels() -> Mapping[str, Any]:
        from parley.theory.kernel.registry import kernels

        return {name: kernels[name] for name in kernels}

    def feature_maps() -> Mapping[str, Any]:
        from parley.models import feature_maps

        return {name: feature_maps[name] for name in feature_maps}

    def losses() -> Mapping[str, Any]:
        from parley.learn.losses import losses

        return {name: losses[name] for name in losses}

    def runtimes() -> Mapping[str, Any]:
        from parley.runtimes import runtimes

        return {name: runtimes[name] for name in runtimes}

    def studies() -> Mapping[str, Any]:
        from parley.studies import studies

        return {name: studies[name] for name in studies}

    return {
        "algorithms": algorithms, "models": models, "partitioners": partitioners, "data-sets": data_sets,
        "server-optimizers": server_optimizers, "schedules": schedules, "losses": losses, "runtimes": runtimes,
        "kernels": kernels, "feature-maps": feature_maps, "studies": studies,
    }  # fmt: skip


def _summary(thing: Any) -> str:
    from parley.core.fields import summary

    return thing.about if hasattr(thing, "about") else summary(thing)


def _settings(name: str, thing: Any) -> None:
    """The thing's description and its settings with type, default and explanation."""
    import inspect

    from parley.core.fields import settings_of, type_text
    from parley.data import Loader
    from parley.study.data_section import loader_settings
    from parley.study.sections import plain

    about = thing.about if hasattr(thing, "about") else inspect.getdoc(thing) or ""
    console().print(f"[bold]{name}[/bold]")
    console().print(about, markup=False)
    settings = settings_of(thing) if is_dataclass(thing) and isinstance(thing, type) else []
    if isinstance(thing, Loader):
        console().print(f"Source: {thing.source}\nLicense: {thing.license}")
        settings = loader_settings(name)
    if settings:
        print_table(
            ["setting", "type", "default", ""],
            [
                (s.name, type_text(s.hint), plain_value(plain(s.default)), " ".join(s.doc.split()))
                for s in settings
            ],
        )  # fmt: skip
