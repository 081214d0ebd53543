"""Is this machine fit? Versions, torch, cores, memory, disk, the run store, extras and data sets, one finding each."""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from parley import __version__
from parley.core.errors import ParleyError
from parley.core.extras import how_to_install
from parley.store.runs import RunStore, store_path

DISTRIBUTION = "parley-fl"
TRIED = ((3, 11),)
"""Versions of Python that the tests have been run with."""
LITTLE = 2**30
"""Bytes of memory or disk below which a run may end early."""
_DEVELOPERS = ("dev", "docs")


@dataclass(frozen=True)
class Finding:
    """One line of the report."""

    subject: str
    state: Literal["ok", "note", "broken"]
    """note: works, but the user may want to know; broken: something will fail."""
    text: str


def examine(store: Path | str | None = None) -> Iterator[Finding]:
    """All findings, one by one."""
    yield _python()
    yield Finding("parley", "ok", f"{__version__} in {Path(__file__).parents[1]}")
    yield from _packages()
    yield _torch()
    yield _cores()
    yield _disk(store_path(store))
    yield _store(store)
    yield _data()
    yield Finding("browser", "ok", "reports are files for any browser; none is needed to make them")


def _python() -> Finding:
    known = sys.version_info[:2] in TRIED
    text = platform.python_version() + ("" if known else "; the tests have not been run with this version")
    return Finding("Python", "ok" if known else "note", text)


def _packages() -> Iterator[Finding]:
    """What Parley needs, and which extras are there."""
    try:
        wanted = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
        extras = distribution(DISTRIBUTION).metadata.get_all("Provides-Extra") or []
    except PackageNotFoundError:
        yield Finding(
            "packages", "note", "Parley is not installed here but run from a folder, so they cannot be checked"
        )
        return
    needed = [
        requirement
        for requirement in wanted
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    missing = [problem for requirement in needed if (problem := _missing(requirement))]
    problem = "; ".join(missing) or f"all {len(needed)} are here"
    yield Finding("packages", "broken" if missing else "ok", problem)
    for extra in (name for name in extras if name not in _DEVELOPERS):
        in_extra = [
            r for r in wanted if r not in needed and r.marker is not None and r.marker.evaluate({"extra": extra})
        ]
        lacking = [problem for requirement in in_extra if (problem := _missing(requirement))]
        if lacking:
            yield Finding(f"extra {extra}", "note", f"{'; '.join(lacking)}: {how_to_install(extra)}")
        else:
            yield Finding(
                f"extra {extra}",
                "ok",
                ", ".join(f"{requirement.name} {version(requirement.name)}" for requirement in in_extra),
            )


def _missing(wanted: Requirement) -> str:
    """What is wrong with an installed package, nothing if all is well."""
    try:
        installed = version(wanted.name)
    except PackageNotFoundError:
        return f"{wanted.name} is not installed"
    return (
        "" if wanted.specifier.contains(installed, prereleases=True) else f"{wanted} is wanted, {installed} installed"
    )


def _torch() -> Finding:
    try:
        import torch

        right = bool((torch.ones(8, 8) @ torch.ones(8, 8) == 8).all())
    except Exception as error:
        return Finding("torch", "broken", f"cannot be used: {type(error).__name__}: {error}")
    device = f"{torch.cuda.device_count()} CUDA device(s)" if torch.cuda.is_available() else "no GPU"
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    text = f"{torch.__version__}, {build}, {device}, {torch.get_num_threads()} threads"
    return Finding("torch", "ok", text) if right else Finding("torch", "broken", f"{text}; it multiplies wrongly")


def _cores() -> Finding:
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free, whole = psutil.virtual_memory().available, psutil.virtual_memory().total
    text = f"{usable} of {os.cpu_count()} cores, {free / 2**30:.1f} of {whole / 2**30:.1f} GiB of memory free"
    return Finding("machine", "ok" if free > LITTLE else "note", text + ("" if free > LITTLE else "; that is little"))


def _disk(path: Path) -> Finding:
    """Room beside the store, and a temporary folder that can be written."""
    folder = next(parent for parent in (path.absolute().parent, *path.absolute().parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile() as file:
            file.write(b"parley")
    except OSError as error:
        return Finding("disk", "broken", f"the temporary folder cannot be written: {error.strerror}; set $TMPDIR")
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free in {folder}"
    return Finding("disk", "ok" if free > LITTLE else "note", text + ("" if free > LITTLE else "; that is little"))


def _store(store: Path | str | None) -> Finding:
    """The store opens, SQLite finds its pages whole, and every run's rows can be read."""
    path = store_path(store)
    if not path.exists():
        return Finding("store", "ok", f"{path} does not exist yet; 'parley run' makes it")
    try:
        with RunStore(path, create=False) as kept:
            infos = kept.runs()
            for info in infos:
                kept.curves(info.id)
                kept.records(info.id)
                kept.failures(info.id)
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            connection.close()
    except (ParleyError, OSError, sqlite3.Error) as error:
        return Finding("store", "broken", f"{path}: {error}")
    if verdict != "ok":
        return Finding("store", "broken", f"{path}: {verdict}")
    open_runs = sum(info.status != "finished" for info in infos)
    return Finding("store", "ok", f"{path}: {len(infos)} runs, {open_runs} of them not finished, all readable")


def _data() -> Finding:
    from parley.data import cache_dir, datasets

    embedded = [name for name in datasets if datasets[name].embedded]
    here = [name for name in datasets if not datasets[name].embedded and datasets[name].present]
    state = f"{', '.join(here)} in {cache_dir()}" if here else f"none in {cache_dir()} (parley data fetch NAME)"
    return Finding("data sets", "ok", f"{len(embedded)} embedded; {state}")
