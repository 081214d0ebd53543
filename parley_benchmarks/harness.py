"""Starts the contestants of a workload, lets them run chunk by chunk in turn, and collects what they measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import Any

import psutil
from safetensors.torch import load_file
from torch import Tensor

from parley import ParleyError
from parley_benchmarks.roster import Entrant
from parley_benchmarks.work import write_work
from parley_benchmarks.workloads import Workload


class ContestantError(ParleyError):
    """A contestant died, or answered with an error."""


@dataclass
class Lap:
    """What one contestant brought home."""

    entry: Entrant
    versions: dict[str, str] = field(default_factory=dict)
    setup: float = 0.0
    """Seconds from the start of the process to the end of its warm-up round."""
    seconds: list[float] = field(default_factory=list)
    """One figure per timed chunk, measured inside the contestant."""
    cpu: list[float] = field(default_factory=list)
    """Processor seconds (user and system) of its whole tree in each timed chunk: steadier than `seconds` on a machine
    that others use too, and the cost of waiting is not in it."""
    early: dict[str, Tensor] = field(default_factory=dict)
    """Parameters after the parity rounds, empty if it has none to compare."""
    final: dict[str, Tensor] = field(default_factory=dict)
    """Parameters after the timed rounds, empty if it has none to compare or the workload uses dropout."""
    peak: int = 0
    """Bytes: the sum over its processes of each one's largest resident size."""


class Child:
    """A contestant's process tree. It sleeps (SIGSTOP) except between a command and its answer."""

    def __init__(self, entry: Entrant, python: Path, work: Path, cores: int, log: Path) -> None:
        self.entry, self.log = entry, log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                entry.command(python, work, cores),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **entry.environment()},
                cwd=work,  # Python looks for modules where it is started, before anywhere else
                # Linux shares the processor between sessions, and some launchers open one: so everyone gets one.
                start_new_session=True,
            )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ask it to quit, then end what is left of its process tree."""
        tree = self.tree()
        if kind is None:
            with suppress(ContestantError, subprocess.TimeoutExpired):
                self.ask(do="quit")
                self.wake()
                self.process.wait(timeout=30)
        for process in tree:
            with suppress(psutil.Error):
                process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def tree(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []

    def wake(self) -> None:
        for process in self.tree():
            with suppress(psutil.Error):
                process.resume()

    def sleep(self) -> None:
        for process in self.tree():
            with suppress(psutil.Error):
                process.suspend()

    def ask(self, **command: Any) -> dict[str, Any]:
        """Wake it, send one command (none: wait for the greeting), and put it back to sleep when it has answered."""
        self.wake()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if command:
            with suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps(command) + "\n")
                self.process.stdin.flush()
        line = self.process.stdout.readline()
        self.sleep()
        answer: dict[str, Any] = json.loads(line) if line else {"ok": False, "error": "it ended without an answer"}
        if not answer["ok"]:
            tail = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise ContestantError(f"contestant '{self.entry.name}' failed: {answer['error']} {' '.join(tail)}".strip())
        return answer

    def cpu(self) -> float:
        total = 0.0
        for process in self.tree():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def peak(self) -> int:
        return sum(peak_resident(process.pid) for process in self.tree())


def peak_resident(pid: int | None = None) -> int:
    """The largest resident size a process (this one) has had, in bytes; its present size where no record is kept."""
    pid = os.getpid() if pid is None else pid
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    with suppress(psutil.Error):
        return int(psutil.Process(pid).memory_info().rss)
    return 0


def race(
    workload: Workload,
    entries: Sequence[Entrant],
    pythons: Mapping[str, Path],
    say: Callable[[str], None] = lambda _: None,
    seed: int = 0,
) -> list[Lap]:
    """Run a workload's contestants in turn: never two at a time, everyone on a chunk of rounds before the next chunk.

    `pythons` maps a peer's name ("" for Parley's own) to the interpreter of its environment.
    """
    laps = [Lap(entry) for entry in entries]
    with terminable(), TemporaryDirectory(prefix="parley-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        write_work(workload, folder, seed)
        running: list[tuple[Child, Lap]] = []
        for number, lap in enumerate(laps):
            say(f"{workload.name}: starting {lap.entry.name}")
            began = time.perf_counter()
            log = folder / f"{number}.log"
            child = stack.enter_context(Child(lap.entry, pythons[lap.entry.peer], folder, workload.cores, log))
            lap.versions = child.ask()["versions"]
            lap.setup = time.perf_counter() - began
            running.append((child, lap))
        _run_all(workload, running, folder / "weights.safetensors", say)
    return laps


@contextmanager
def terminable() -> Iterator[None]:
    """Turn a termination signal into an exception, so that processes and files are cleaned up on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_all(
    workload: Workload, contestants: Sequence[tuple[Child, Lap]], path: Path, say: Callable[[str], None]
) -> None:
    for child, lap in contestants:
        if lap.entry.comparable:
            say(f"{workload.name}: {lap.entry.name}, {workload.parity_rounds} rounds to compare parameters")
            child.ask(do="reset", dropout=False)
            child.ask(do="run", start=0, stop=workload.parity_rounds)
            lap.early = _weights(child, path)
        child.ask(do="reset", dropout=workload.dropout)
    for repeat in range(workload.repeats):
        start = repeat * workload.rounds
        # The order rotates, so that no one always inherits the same neighbour's caches and clock speed.
        turn = repeat % len(contestants)
        for child, lap in [*contestants[turn:], *contestants[:turn]]:
            before = child.cpu()
            lap.seconds.append(child.ask(do="run", start=start, stop=start + workload.rounds)["seconds"])
            lap.cpu.append(child.cpu() - before)
            say(f"{workload.name}: chunk {repeat + 1}/{workload.repeats}, {lap.entry.name} {lap.seconds[-1]:.3f} s")
    for child, lap in contestants:
        if lap.entry.comparable and not workload.dropout:
            lap.final = _weights(child, path)
        lap.peak = child.peak()


def _weights(child: Child, path: Path) -> dict[str, Tensor]:
    child.ask(do="save", path=str(path))
    # Cloned, because the file is mapped and the next contestant overwrites it.
    return {name: w.clone() for name, w in load_file(path).items()}
