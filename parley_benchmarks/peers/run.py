"""Ask every library, each in its own environment, and judge what it answers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from parley import InputError
from parley.core.errors import nearest
from parley_benchmarks.peers.roster import LIBRARIES, Library, Offer
from parley_benchmarks.peers.setting import EQUAL, METHODS, SETTINGS, Method, Setting, Weights, question
from parley_benchmarks.peers.verdict import ROUNDS, Row, judge

ADAPTERS = Path(__file__).parent
PATIENCE = 600.0
"""Seconds an adapter may take."""


@dataclass(frozen=True)
class Entry:
    """One line to fill: a library, a method in one of its forms, and a setting; without an offer, nothing to run."""

    library: Library
    method: Method
    setting: Setting
    variant: str = ""
    offer: Offer | None = None

    @property
    def weights(self) -> Weights:
        return (self.offer.weights if self.offer else None) or self.method.weights

    @property
    def command(self) -> str:
        return f"parley conformance {self.method.name} --peer {self.library.name}"


def planned_peers(method: str | None = None, libraries: Sequence[str] = ()) -> list[Entry]:
    """The lines of the table, library by library."""
    for name in libraries:
        if name not in LIBRARIES:
            raise InputError(f"unknown library '{name}': {nearest(name, LIBRARIES)}")
    if method is not None and method not in METHODS:
        raise InputError(f"other libraries are asked for {', '.join(METHODS)}, not for '{method}'.")
    plans = []
    for library in (LIBRARIES[name] for name in libraries or LIBRARIES):
        for peer_method in METHODS.values() if method is None else [METHODS[method]]:
            offer = library.offers.get(peer_method.name)
            if offer is None:
                plans.append(Entry(library, peer_method, EQUAL))
                continue
            for variant in offer.variants:
                plans += [Entry(library, peer_method, setting, variant, offer) for setting in SETTINGS.values()]
    return plans


def ask(python: Path, adapter: str, asked: dict[str, Any], root: Path = ADAPTERS, ours: bool = False) -> dict[str, Any]:
    """An adapter's answer; one that dies or is silent answers with an error."""
    # Libraries get the adapters only: what else lies beside Parley must not be found before their own packages.
    paths = [root, *([Path(__file__).parents[2]] if ours else [])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "WANDB_MODE": "offline",
    }
    with TemporaryDirectory(prefix="parley-peers-") as folder:
        try:
            done = subprocess.run(
                [str(python), "-m", f"adapters.{adapter}"],
                input=json.dumps(asked),
                capture_output=True,
                text=True,
                cwd=folder,
                env=environment,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"ok": False, "error": f"no answer within {PATIENCE:g} s"}
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except json.JSONDecodeError:
        last = done.stderr.strip().splitlines()[-1:]
        answer = {"ok": False, "error": " ".join(last) or f"it ended with code {done.returncode} and no answer"}
    return answer


def fill(plan: Entry, python: Callable[[Library], Path], root: Path = ADAPTERS) -> Row:
    """Run one line."""
    blank = Row(
        plan.library.name,
        "",
        plan.method.name,
        plan.variant,
        plan.setting.name,
        plan.weights,
        "not offered",
        command=plan.command,
    )
    if plan.offer is None:
        return replace(blank, setting="", weights="", command="")
    try:
        interpreter = python(plan.library)
    except InputError as error:
        return replace(blank, verdict="did not run", error=str(error))
    asked = question(plan.method, plan.setting, plan.weights, plan.variant, ROUNDS)
    answer = ask(interpreter, plan.library.adapter, asked, root, plan.library.ours)
    if not answer["ok"]:
        return replace(blank, verdict="did not run", error=_short(answer["error"]))
    version = answer["versions"][plan.library.package]
    row = judge(
        plan.library.name, version, plan.method, plan.variant, plan.setting, plan.weights, answer["points"], ROUNDS
    )
    return replace(row, command=plan.command)


def compare(
    python: Callable[[Library], Path], method: str | None = None, libraries: Sequence[str] = ()
) -> Iterator[Row]:
    """Line after line; `python` gives the interpreter of a library's environment."""
    return (fill(plan, python) for plan in planned_peers(method, libraries))


def record(rows: Sequence[Row]) -> dict[str, Any]:
    """What is written to a file: the rows, when they were made, and the command that makes all of them again."""
    versions = {row.library: row.version for row in rows if row.version}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "command": "parley conformance --peers",
        "rounds": list(ROUNDS),
        "versions": versions,
        "rows": [row.as_json() for row in rows],
    }


def _short(error: str, limit: int = 200) -> str:
    return error if len(error) <= limit else error[: limit - 3] + "..."
