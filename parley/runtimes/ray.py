"""Ray: clients on the workers of a Ray cluster, one thread each, or of a Ray that is started on this machine.

The job, with the federation's data, is put into the object store once and mapped by all workers of a node; what several
clients receive is put there once per exchange. Clients travel in chunks. A worker that dies, with its node or alone,
takes nobody with it: its clients are tried again one by one, and a client whose worker dies twice counts as dropped.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from parley.core.errors import InputError, ParleyError, UnsupportedError
from parley.core.extras import how_to_install
from parley.core.failure import Failure
from parley.core.processes import search_path
from parley.runtimes.execute import describe
from parley.runtimes.protocol import Answer, Call, EvaluationCall, Job, Score, Stamp, runtimes
from parley.runtimes.ray_worker import Client, packed_items, packed_job, unpacked

_STARTS = 120.0
"""Seconds the workers may take to come up, and a new one in place of one that died."""
_CHUNKS = 8
"""Chunks per worker that an exchange is cut into, so that slow clients do not leave workers idle at its end."""
_REACHED = 10.0
"""Seconds to wait for a cluster's address; Ray's own patience is minutes."""
_SURROUNDINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Of a Ray of our own. Its default, 15, lets workers starve on a machine that does anything else.
    "RAY_worker_niceness": "0",
}
"""Of Ray's settings those that a user has not made."""


@dataclass
class _Worker:
    actor: Any
    coming: Any
    """Tells when it is up."""
    since: float
    node: str = ""
    """Where it is, once it is up."""
    queue: deque[tuple[Any, list[int]]] = field(default_factory=deque)
    """What it was given: (the answers to come, the numbers of the items), the first being under way."""


class RayRuntime:
    """Workers of a Ray cluster, or of a Ray of this machine's own that ends with the run."""

    name = "ray"
    holds_memories = False
    folder: Path | None = None

    def __init__(self, job: Job, workers: int | None = None, address: str | None = None, beside: int = 1) -> None:
        """Without `workers`, one for each CPU; `beside` so many runs that share the cluster, for each of its part."""
        self._ray, self._ours = _connected(workers, address)
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)  # what the server itself computes must not depend on the machine either
        self._workers: list[_Worker] = []
        self._busy: Counter[str] = Counter()
        self._asked = time.monotonic()
        try:
            resources = self._ray.cluster_resources()
            self._count = workers or max(1, int(resources.get("CPU", 1)) // beside)
            self._job, self._packed = packed_job(job, self._ray)
            self._device = job.task.device
            gpus = min(1.0, resources.get("GPU", 0.0) / (self._count * beside)) if self._device.type == "cuda" else 0.0
            # A cluster's machines have Parley installed; processes of this machine find what this one has found.
            path = {"PYTHONPATH": search_path()} if self._ours else {}
            threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            options = {
                "num_cpus": 1,
                "num_gpus": gpus,
                "max_restarts": 0,
                "max_task_retries": 0,
                "runtime_env": {"env_vars": threads | path},
            }
            self._make = self._ray.remote(**options)(Client)
            self._workers.extend(self._start() for _ in range(self._count))
            self._wait_until_up()
        except BaseException:
            self.close()
            raise

    def _start(self) -> _Worker:
        actor = self._make.remote(self._job, self._packed, self._device)
        return _Worker(actor, actor.node.remote(), time.monotonic())

    def _wait_until_up(self) -> None:
        """Until all workers are up; a cluster that has no place for some of them makes do with the others."""
        while any(not worker.node for worker in self._workers):
            self._look_for_new(patience=1.0)

    def _look_for_new(self, patience: float) -> None:
        """Which workers have come up. Those that cannot are given up; without any the run cannot go on."""
        coming = {worker.coming: worker for worker in self._workers if not worker.node}
        up = self._ray.wait(list(coming), num_returns=1, timeout=patience)[0] if coming else []
        for ref in up:
            worker = coming[ref]
            try:
                worker.node = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:  # our own code, or the user's, failed to load there
                raise ParleyError(f"Ray's workers cannot start: {describe(error.cause or error)}.") from error
            except self._ray.exceptions.RayError:
                self._workers.remove(worker)
        for worker in [w for w in self._workers if not w.node and time.monotonic() > w.since + _STARTS]:
            self._kill(worker)
            self._workers.remove(worker)
        if not self._workers:
            raise ParleyError(f"Ray gave no worker within {_STARTS:g} s; is the cluster up, and has it free CPUs?")

    @property
    def nodes(self) -> dict[str, int]:
        """Node -> workers that are up on it."""
        return dict(Counter(worker.node for worker in self._workers if worker.node))

    def busy(self) -> dict[str, float]:
        """Node -> the share of its workers' time that went into clients since this was last asked."""
        now = time.monotonic()
        passed, self._asked = max(now - self._asked, 1e-9), now
        shares = {node: min(1.0, self._busy[node] / (count * passed)) for node, count in self.nodes.items()}
        self._busy.clear()
        return shares

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        return self._map(list(calls), ("message", "memory"), lambda call: call.recipient, deadline)

    def evaluate(self, calls: Sequence[EvaluationCall]) -> list[Score | Failure]:
        return self._map(list(calls), ("model", "memory"), lambda call: call.client or "the central test set", None)

    def _map(
        self, calls: list[Any], fields: tuple[str, str], who: Callable[[Any], str], deadline: float | None
    ) -> list[Any]:
        """Answers in the order of the calls, however many workers come and go meanwhile."""
        items, shared = packed_items(calls, fields, self._ray)
        size = 1 if deadline is not None else max(1, -(-len(items) // (_CHUNKS * max(1, len(self._workers)))))
        waiting = deque(list(range(at, min(at + size, len(items)))) for at in range(0, len(items), size))
        deep = 1 if deadline is not None else 2  # a chunk ahead, so that workers never wait for us
        answers: dict[int, Any] = {}
        died: Counter[int] = Counter()
        while len(answers) < len(items):
            for worker in self._workers:
                while worker.node and waiting and len(worker.queue) < deep:
                    chunk = waiting.popleft()
                    if not worker.queue:
                        worker.since = time.monotonic()
                    worker.queue.append((worker.actor.answer.remote([items[n] for n in chunk], *shared), chunk))
            self._look_for_new(patience=0.0)
            heads = {worker.queue[0][0]: worker for worker in self._workers if worker.queue}
            if not heads:
                time.sleep(0.05)
                continue
            done, _ = self._ray.wait(list(heads), num_returns=1, timeout=_patience(heads.values(), deadline))
            for ref in done:
                worker, (_, chunk) = heads[ref], heads[ref].queue[0]
                try:
                    seconds, outcomes = self._ray.get(ref)
                except self._ray.exceptions.RayTaskError as error:  # a bug of ours: clients' errors are answers
                    raise ParleyError(f"a Ray worker failed: {describe(error.cause or error)}.") from error
                except self._ray.exceptions.RayError as error:
                    self._replace(worker, waiting)
                    for number in chunk:
                        died[number] += len(chunk) == 1
                        if died[number] > 1:
                            answers[number] = Failure(who(calls[number]), f"its Ray worker died twice ({_why(error)}).")
                        else:
                            waiting.appendleft([number])
                    continue
                worker.queue.popleft()
                worker.since = time.monotonic()
                self._busy[worker.node] += seconds
                answers.update(zip(chunk, map(unpacked, outcomes), strict=True))
            for worker in [w for w in heads.values() if deadline is not None and _late(w, deadline, done)]:
                (number,) = worker.queue[0][1]
                self._replace(worker, waiting)
                answers[number] = Failure(who(calls[number]), f"gave no answer within {deadline:g} s.")
        return [answers[number] for number in range(len(calls))]

    def _replace(self, worker: _Worker, waiting: deque[list[int]]) -> None:
        """End a worker and start another; all it was given but the first waits again."""
        worker.queue.popleft()
        waiting.extendleft(chunk for _, chunk in reversed(worker.queue))
        self._kill(worker)
        self._workers[self._workers.index(worker)] = self._start()

    def _kill(self, worker: _Worker) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(worker.actor)

    def close(self) -> None:
        for worker in self._workers:
            self._kill(worker)
        self._workers.clear()
        if self._ours:
            self._ray.shutdown()
        torch.set_num_threads(self._before)


@contextmanager
def shared_cluster(workers: int, address: str | None) -> Iterator[tuple[str, int]]:
    """A cluster for several processes of this machine: its address and its CPUs.

    Without an address it is a Ray of this machine's own, with so many workers, that ends with the block.
    """
    ray, ours = _connected(workers, address)
    try:
        yield str(ray.get_runtime_context().gcs_address), max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        if ours:
            ray.shutdown()


def _connected(workers: int | None, address: str | None) -> tuple[Any, bool]:
    """Ray, connected, and whether it is ours to shut down."""
    os.environ.update({name: os.environ.get(name, value) for name, value in _SURROUNDINGS.items()})
    try:
        import ray
    except ImportError:
        raise UnsupportedError(f"the runtime 'ray' needs Ray: {how_to_install('ray')}.") from None
    if ray.is_initialized():
        if address is not None and address not in ("auto", ray.get_runtime_context().gcs_address):
            raise InputError(f"this process is connected to another Ray than {address}; leave out the address.")
        return ray, False
    if address not in (None, "auto"):
        _check_reachable(str(address))
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if address is not None:
            ray.init(address=address, **quiet)
            return ray, True
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
        return ray, True
    except Exception as error:  # Ray raises many kinds
        where = f" at {address}" if address else ""
        # Ray looks for its token by itself, but for a cluster that is named by its address only if it is told to.
        asks = address is not None and "RAY_AUTH_MODE" not in os.environ
        hint = " If the cluster asks for Ray's token, set RAY_AUTH_MODE=token." if asks else ""
        raise InputError(f"Ray cannot be reached{where}: {describe(error).rstrip('.')}.{hint}") from error


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InputError(f"a Ray cluster's address is host:port or auto, not '{address}'.")
    try:
        socket.create_connection((host, int(port)), _REACHED).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"Ray cannot be reached at {address}: {error}.") from None


def _patience(busy: Iterable[_Worker], deadline: float | None) -> float:
    """How long to wait for the next answer; new workers are looked for meanwhile."""
    if deadline is None:
        return 0.5
    return max(0.0, min(0.5, min(worker.since for worker in busy) + deadline - time.monotonic()))


def _late(worker: _Worker, deadline: float, done: list[Any]) -> bool:
    return bool(worker.queue) and worker.queue[0][0] not in done and time.monotonic() > worker.since + deadline


def _why(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


runtimes("ray")(RayRuntime)
