"""Runs side by side, each in a process of its own on this machine: the seeds of a study, the trials of a search.

The processes are the runs' servers and write the store, which is this machine's. Their clients are executed as the
study says; where that is `ray`, all runs share one cluster, each with as many of its workers as the others.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any, Protocol, TypeVar

import torch

from parley.core.errors import InputError, ParleyError
from parley.core.processes import end_with_parent, interruptible
from parley.runtimes import Job, Runtime, fork_server
from parley.runtimes.auto import available_cores
from parley.runtimes.ray import RayRuntime, shared_cluster
from parley.store.runs import RunStore
from parley.study.study import Study

PATIENCE = 3.0
"""Seconds in which a worker that is interrupted may save its run."""
_DIED = "a worker process died; its run is kept up to its last checkpoint."
Report = Callable[[int, float], bool]
"""(round, value so far) -> whether to stop."""
Token = TypeVar("Token")


class Assignment(Protocol):
    """What a worker is sent."""

    def perform(self, workspace: Workspace, report: Report) -> Any:
        """Train; what it gives must be plain."""


@dataclass(frozen=True)
class Slots:
    """What runs side by side share."""

    store: Path
    runs: int
    """How many there are at a time."""
    address: str | None = None
    """The Ray cluster's."""


class Workspace:
    """Where one run after the other trains, alone or beside others; clients that two of them share are loaded once."""

    def __init__(self, store: RunStore, slots: Slots | None = None) -> None:
        self.store, self._slots = store, slots
        self._before: Study | None = None

    def fitted(self, study: Study) -> Study:
        """The study with this run's part of the machine or cluster."""
        slots = self._slots
        if slots is not None and slots.address is not None:
            study = replace(study, address=slots.address)
        elif slots is not None and study.workers is None:
            study = replace(study, workers=1)
        if self._before is not None and _same_clients(study, self._before):
            vars(study)["_federation"] = self._before.federation()  # what loading it again would give
        self._before = study
        return study

    def execute(self, study: Study) -> Callable[[Job], Runtime] | None:
        """What executes its clients, where that is not what the study names by itself."""
        slots = self._slots
        if slots is None or slots.address is None or study.runtime != "ray":
            return None
        return lambda job: RayRuntime(job, study.workers, slots.address, beside=slots.runs)


def _same_clients(first: Study, other: Study) -> bool:
    """Whether both describe the same data, read and dealt alike."""
    decisive = ("seed", "data", "data_fingerprint", "cohort", "preprocessing")
    return all(getattr(first, name) == getattr(other, name) for name in decisive)


def side_by_side(
    tasks: Iterable[tuple[Token, Assignment]],
    study: Study,
    store: Path,
    runs: int,
    report: Callable[[Token, int, float], bool] = lambda token, round, value: False,
) -> Generator[tuple[Token, Any], None, None]:
    """Perform tasks, at most `runs` at a time, and give what came of each as it ends, by its token.

    The next task is asked for when a process has nothing to do. `study` is like those of all tasks in what executes
    its clients. `report` is told how a task stands and says whether it is enough.
    """
    coming = iter(tasks)
    with _placed(study, store, runs) as slots, _processes(slots) as connections:
        busy: dict[Connection, Token] = {}
        idle = list(connections)
        while True:
            while idle and (next_one := next(coming, None)) is not None:
                token, task = next_one
                _send(idle[-1], task)
                busy[idle.pop()] = token
            if not busy:
                return
            for connection in [ready for ready in wait(list(busy)) if isinstance(ready, Connection)]:
                try:
                    kind, *content = connection.recv()
                except (EOFError, OSError):
                    raise ParleyError(_DIED) from None
                if kind == "report":
                    _send(connection, report(busy[connection], *content))
                elif kind == "error":
                    raise InputError(content[0])
                else:
                    idle.append(connection)
                    yield busy.pop(connection), content[0]


def _send(connection: Connection, item: Any) -> None:
    try:
        connection.send(item)
    except OSError:
        raise ParleyError(_DIED) from None


@contextmanager
def _placed(study: Study, store: Path, runs: int) -> Iterator[Slots]:
    """A cluster that all runs share, where the study's clients need one, and as many runs as fit it."""
    if study.runtime != "ray":
        yield Slots(store, runs)
        return
    local = runs * study.workers if study.workers is not None else available_cores()
    with shared_cluster(local, study.address) as (address, cpus):
        yield Slots(store, max(1, min(runs, cpus // (study.workers or 1))), address)


@contextmanager
def _processes(slots: Slots) -> Iterator[list[Connection]]:
    """Worker processes, by the connections to them; they end with the block, and with this process."""
    started = []
    try:
        for _ in range(slots.runs):
            here, far_end = Pipe()
            with far_end:
                started.append((fork_server.start(__name__, [far_end.fileno()]), here))
            _send(here, slots)
        yield [here for _, here in started]
    finally:
        for _, here in started:
            here.close()
        for worker, _ in started:
            try:
                worker.wait(PATIENCE)
            except TimeoutExpired:  # in the middle of a run, which its checkpoint keeps
                worker.kill()
                worker.wait()


def main(files: Sequence[int]) -> None:
    """A worker's life: tasks come in, ("report", round, value), ("done", result) or ("error", sentence) go out."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a run that is interrupted is saved
    torch.set_num_threads(1)
    end_with_parent()
    connection = Connection(files[0])
    with suppress(EOFError, OSError, KeyboardInterrupt), interruptible():
        slots: Slots = connection.recv()
        with RunStore(slots.store) as store:
            _work(connection, Workspace(store, slots))


def _work(connection: Connection, workspace: Workspace) -> None:
    def report(round: int, value: float) -> bool:
        connection.send(("report", round, value))
        return bool(connection.recv())

    while True:
        task: Assignment = connection.recv()
        try:
            connection.send(("done", task.perform(workspace, report)))
        except ParleyError as error:
            connection.send(("error", str(error)))
