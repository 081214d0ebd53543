"""Clients that fail in every way, workers that die, and what is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.exchange import Reply, exchange
from parley.core.errors import InputError, ParleyError, QuorumError
from parley.core.message import Memory, Message
from parley.data import ClientData, Federation
from parley.engine.listeners import Listener
from parley.engine.settings import Faults
from parley.models import mlp
from parley.runtimes import fork_server, pool
from parley.store.runs import RunStore
from parley.study.train import train


def federation(count: int) -> Federation:
    """Client i has 10 + i samples, by which an algorithm can tell who it is."""
    random = np.random.default_rng(0)
    return Federation.from_arrays(
        {
            f"c{i}": (random.normal(size=(10 + i, 5)).astype(np.float32), random.integers(3, size=10 + i))
            for i in range(count)
        }
    )


def moody(moods: dict[int, str], flag: Path | None = None) -> FedAvg:
    """FedAvg whose clients have moods. The class is made here, so that workers get it by value."""

    class Moody(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data: ClientData, context) -> Reply:
            if not moods:
                return super().client(task, message, memory, data, context)
            len(data)  # moods are individual: a stack shows no samples
            reply = super().client(task, message, memory, data, context)
            match moods.get(len(data) - 10):
                case "raise":
                    raise ZeroDivisionError("no\nluck")
                case "nan":
                    return Reply(Message({n: v / 0 * 0 for n, v in reply.message.tensors.items()}))
                case "nan memory":
                    return Reply(reply.message, Memory.of(x=torch.tensor([1.0, float("inf")])))
                case "nan scalar":
                    return Reply(Message(reply.message.tensors, {"loss": float("nan")}))
                case "shape":
                    return Reply(Message({n: v.flatten() for n, v in reply.message.tensors.items()}))
                case "missing":
                    return Reply(Message(dict(list(reply.message.tensors.items())[1:])))
                case "dtype":
                    return Reply(Message({n: v.double() for n, v in reply.message.tensors.items()}))
                case "not a reply":
                    return reply.message  # type: ignore[return-value]
                case "not a message":
                    return Reply({"update": 1})  # type: ignore[arg-type]
                case "not a tensor":
                    return Reply(Message({"update/0.weight": 3.0}))  # type: ignore[dict-item]
                case "nested scalar":
                    return Reply(Message(reply.message.tensors, {"list": [1]}))  # type: ignore[dict-item]
                case "complex memory":
                    return Reply(reply.message, Memory.of(x=torch.zeros(1, dtype=torch.complex64)))
                case "list in memory" | "none in memory" | "huge number" as mood:
                    odd = {"list in memory": [1], "none in memory": None, "huge number": 10**5000}[mood]
                    return Reply(reply.message, Memory({}, {"n": odd}))  # type: ignore[dict-item]
                case "reserved name":
                    return Reply(reply.message, Memory({"__metadata__": torch.zeros(1)}))
                case "name":
                    return Reply(reply.message, Memory({3: torch.zeros(1)}))  # type: ignore[dict-item]
                case "two losses":
                    return Reply(reply.message, None, {"loss": torch.zeros(2)})
                case "tensor scalar":
                    return Reply(Message(reply.message.tensors, {"n": torch.zeros(())}))  # type: ignore[dict-item]
                case "unencodable":
                    raise ValueError("\udce4")
                case "mute":

                    class Mute(Exception):
                        def __str__(self) -> str:
                            raise RuntimeError("no text")

                    raise Mute
                case "exit":
                    raise SystemExit(0)
                case "sparse":
                    return Reply(reply.message, Memory.of(x=torch.zeros(2, 2).to_sparse()))
                case "meta":
                    return Reply(reply.message, Memory.of(x=torch.zeros(1, device="meta")))
                case "nothing observed":
                    return Reply(reply.message, None, None)  # type: ignore[arg-type]
                case "hang":
                    time.sleep(1000)
                case "kill" | "kill once" if flag is not None:
                    mine = flag.with_name(f"{flag.name}-{len(data)}")
                    if moods[len(data) - 10] == "kill" or not mine.exists():
                        mine.touch()
                        os.kill(os.getpid(), signal.SIGKILL)
            return reply

    return Moody(lr=0.1, batch=4)


SAYS = {
    1: ("raise", "raised ZeroDivisionError: no (test_faults.py, line "),
    2: ("nan", "sent NaN or infinite numbers in its message."),
    3: ("nan memory", "made NaN or infinite numbers in its memory."),
    4: ("nan scalar", "gave a reply that cannot be used: scalar 'loss' is neither"),
    5: ("shape", "sent a reply of the wrong form: tensor 'update/1.weight' is torch.float32 [20], expected"),
    6: ("missing", "sent a reply of the wrong form: tensor 'update/1.weight' is missing."),
    7: ("dtype", "sent a reply of the wrong form: tensor 'update/1.weight' is torch.float64"),
    8: ("not a reply", "gave a reply that cannot be used: Message where a Reply was expected."),
    9: ("not a message", "gave a reply that cannot be used: dict where a Message was expected."),
    10: ("not a tensor", "gave a reply that cannot be used: 'update/0.weight' is a float where a tensor was expected."),
    11: ("nested scalar", "gave a reply that cannot be used: scalar 'list'"),
    12: ("complex memory", "gave a reply that cannot be used: tensor 'x' has dtype torch.complex64"),
    13: ("list in memory", "gave a reply that cannot be used: scalar 'n' is neither"),
    14: ("none in memory", "gave a reply that cannot be used: scalar 'n' is neither"),
    15: ("huge number", "gave a reply that cannot be used: scalar 'n' is a whole number of more than"),
    16: ("reserved name", "gave a reply that cannot be used: a tensor cannot be called '__metadata__'"),
    17: ("name", "gave a reply that cannot be used: a tensor is called 3"),
    18: ("two losses", "gave a reply that cannot be used: the observed loss has 2 values."),
    19: ("tensor scalar", "gave a reply that cannot be used: scalar 'n' is neither"),
    20: ("unencodable", "raised ValueError: ?"),
    21: ("mute", "raised Mute: (its text cannot be shown)"),
    22: ("exit", "raised SystemExit: 0"),
    23: ("sparse", "gave a reply that cannot be used: tensor 'x' is sparse"),
    24: ("meta", "gave a reply that cannot be used: tensor 'x' is sparse or has no values"),
    25: ("nothing observed", "gave a reply that cannot be used: what may be observed"),
}
CALM = ("c0", "c26", "c27")


def options(**more):
    return {"model": mlp(4), "rounds": 2, "faults": Faults(quorum=0.05), "workers": 2} | more


@pytest.mark.parametrize("runtime", ["inline", "pool"])
def test_failing_clients_are_named_and_left_out(runtime: str):
    everyone, moods = federation(28), {i: mood for i, (mood, _) in SAYS.items()}
    run = train(moody(moods), everyone, runtime=runtime, **options())
    for record in run.records:
        assert {f.client: f.reason for f in record.failures}.keys() == {f"c{i}" for i in SAYS}
        for failure in record.failures:
            assert failure.reason.startswith(SAYS[int(failure.client[1:])][1])
            assert "\n" not in failure.reason
        assert record.metrics["cohort"].value == 3
        assert record.metrics["up/bytes"].clients.keys() == set(CALM)
    # The others count as if they had been alone, weights scaled to sum to one.
    alone = {client: everyone.client(client) for client in CALM}
    wanted = train(moody({}), Federation.from_arrays(alone, info=everyone.info), runtime="inline", **options())
    for name, value in run.state.tensors.items():
        torch.testing.assert_close(value, wanted.state.tensors[name], rtol=1e-5, atol=1e-6)


def test_the_same_in_processes_and_workers_that_die(tmp_path: Path, same):
    """One worker is killed in the middle of a client, which is tried again; one client kills every worker."""
    moods = {1: "raise", 2: "nan", 12: "hang", 13: "kill", 14: "kill once"}
    calm = {i: mood if mood not in ("hang", "kill", "kill once") else "raise" for i, mood in moods.items()} | {14: ""}
    everyone = federation(16)
    before = resources()
    faults = Faults(quorum=0.1, deadline=1.5)
    got = train(moody(moods, tmp_path / "killed"), everyone, runtime="pool", **options(faults=faults))
    for record in got.records:
        reasons = {f.client: f.reason for f in record.failures}
        assert reasons["c12"] == "gave no answer within 1.5 s."
        assert reasons["c13"] == "its worker process died twice (exit code -9)."
        assert "c14" not in reasons
        assert reasons.keys() == {"c1", "c2", "c12", "c13"}
    assert (tmp_path / "killed-24").exists()
    wanted = train(moody(calm), everyone, runtime="inline", **options())
    for name, value in got.state.tensors.items():
        assert torch.equal(value, wanted.state.tensors[name])
    assert resources() == before


def resources() -> tuple[int, list[psutil.Process], int]:
    """Open descriptors, child processes and shared memory maps of this process."""
    fork_server.current()
    gc.collect()
    maps = sum("memfd:parley" in line for line in Path("/proc/self/maps").read_text().splitlines())
    return len(list(Path("/proc/self/fd").iterdir())), psutil.Process().children(recursive=True), maps


def workers() -> list[psutil.Process]:
    """The processes that this one's fork server has forked."""
    here = psutil.Process()
    while not (forked := [one for one in here.children(recursive=True) if one not in here.children()]):
        time.sleep(0.01)
    return forked


class Killer(Listener):
    """Kills a worker between two rounds."""

    def round(self, record) -> None:
        if record.number == 1:
            workers()[0].kill()
            time.sleep(0.2)


class EarlyKiller(Listener):
    """Kills a worker that is still starting."""

    def start(self, run, rounds: int) -> None:
        workers()[0].kill()


def test_strict_runs_stop_at_the_first_client_that_raises_with_its_traceback():
    faults = Faults(strict=True)
    with pytest.raises(ParleyError, match=r"client 'c1' raised ZeroDivisionError") as caught:
        train(moody({1: "raise"}), federation(3), runtime="inline", **options(faults=faults))
    assert 'raise ZeroDivisionError("no\\nluck")' in str(caught.value)


def test_a_worker_that_dies_while_it_starts_is_replaced(same):
    everyone = federation(3)
    runs = [
        train(moody({}), everyone, runtime=runtime, listeners=listeners, **options(rounds=2))
        for runtime, listeners in (("inline", []), ("pool", [EarlyKiller()]))
    ]
    same(*runs)


class Abandoner(Listener):
    """Kills the fork server between two rounds, with whom all its workers end."""

    def round(self, record) -> None:
        if record.number == 1:
            fork_server.current()._process.kill()


def test_a_fork_server_that_dies_is_replaced_with_its_workers(same):
    everyone = federation(3)
    runs = [
        train(moody({}), everyone, runtime=runtime, listeners=listeners, **options(rounds=3))
        for runtime, listeners in (("inline", []), ("pool", [Abandoner()]), ("wire", [Abandoner()]))
    ]
    for run in runs[1:]:
        same(run, runs[0])


def test_workers_see_the_environment_and_the_folder_of_now(tmp_path, monkeypatch):
    """Although they come from a process that was started before."""
    fork_server.current()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARLEY_TEST_WORD", "now")

    class Telling(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context) -> Reply:
            Path("said").write_text(os.environ["PARLEY_TEST_WORD"] + os.environ["OMP_NUM_THREADS"])
            return super().client(task, message, memory, data, context)

    for runtime in ("pool", "wire"):
        train(Telling(lr=0.1, batch=4), federation(2), runtime=runtime, **options(rounds=1))
        assert (tmp_path / "said").read_text() == "now1"
        (tmp_path / "said").unlink()


def test_a_worker_that_dies_while_idle_is_replaced(same):
    everyone = federation(3)
    runs = [
        train(moody({}), everyone, runtime=runtime, listeners=listeners, **options(rounds=3))
        for runtime, listeners in (("inline", []), ("pool", [Killer()]))
    ]
    same(*runs)


class Unloadable:
    """Can be pickled, but not be loaded in another process."""

    def __reduce__(self):
        return (exec, ("raise SystemExit(3)",))


def test_workers_that_cannot_start_are_reported(capfd):
    before = resources()
    algorithm = moody({})
    object.__setattr__(algorithm, "extra", Unloadable())
    with pytest.raises(ParleyError, match=r"cannot start \(exit code 3\)"):
        train(algorithm, federation(2), runtime="pool", **options())
    assert resources() == before


def test_below_the_quorum_the_run_stops_and_can_be_resumed(tmp_path: Path, same):
    everyone = federation(4)
    flag = tmp_path / "trouble"

    class Troubled(FedAvg):
        @exchange(like=FedAvg.client)
        def client(self, task, message, memory, data, context) -> Reply:
            if flag.exists() and len(data) < 13:
                raise RuntimeError("trouble")
            return super().client(task, message, memory, data, context)

    class Trouble(Listener):
        def round(self, record) -> None:
            if record.number == 2:
                flag.touch()

    algorithm = Troubled(lr=0.1, batch=4)
    with RunStore(tmp_path / "runs.db") as store:
        say = {"model": mlp(4), "rounds": 4, "runtime": "inline", "store": store}
        with pytest.raises(QuorumError, match=r"round 3: only 1 of 4 clients answered, the quorum is 50%") as caught:
            train(algorithm, everyone, listeners=[Trouble()], **say)
        assert "client 'c0' raised RuntimeError: trouble" in str(caught.value)
        info = store.info("last")
        assert (info.status, info.rounds) == ("stopped", 2)
        flag.unlink()
        resumed = train(algorithm, everyone, resume=info.id, **say)
        assert store.info("last").status == "finished"
        same(resumed, train(algorithm, everyone, **say))
    # A quorum is met exactly at its share.
    say = {"model": mlp(4), "rounds": 1, "runtime": "inline"}
    train(moody({0: "raise", 1: "raise"}), everyone, faults=Faults(quorum=0.5), **say)
    with pytest.raises(QuorumError):
        train(moody({0: "raise", 1: "raise"}), everyone, faults=Faults(quorum=0.51), **say)


def test_one_client_of_a_stack_that_diverges_spoils_no_other():
    """Its numbers overflow; the rows of the others stay what they are."""
    random = np.random.default_rng(0)
    clients = {i: (random.normal(size=(6, 3)), random.normal(size=6)) for i in "abc"}
    clients["b"] = (clients["b"][0] * 1e20, clients["b"][1])
    runs = [
        train(
            FedAvg(lr=0.1, steps=5, batch=None), Federation.from_arrays(clients), model=mlp(4), rounds=2, runtime=name
        )
        for name in ("inline", "stacked")
    ]
    for run in runs:
        assert [failure.client for record in run.records for failure in record.failures] == ["b", "b"]
    for name, value in runs[0].state.tensors.items():
        torch.testing.assert_close(runs[1].state.tensors[name], value)


def test_a_client_that_is_not_there_or_not_readable(tmp_path: Path):
    def make(i: int) -> ClientData:
        if i == 1:
            raise OSError("disk gone")
        return ClientData(torch.ones(4, 5), torch.ones(4))

    broken = Federation.from_function(3, make, 4)
    for runtime in ("inline", "stacked"):
        run = train(FedAvg(batch=2), broken, model=mlp(2), rounds=1, runtime=runtime)
        (failure,) = run.records[-1].failures
        assert failure.client == "1"
        assert "disk gone" in failure.reason


SCRIPT = """
import sys, time, numpy as np, psutil
from parley.algorithms.exchange import exchange
from parley.algorithms.averaging.local_update import FedAvg
from parley.core.key import Key
from parley.core.message import Memory
from parley.data import Federation
from parley.study.train import make_task
from parley.models import mlp
from parley.runtimes import fork_server
from parley.runtimes import Call, Job, Stamp, open_runtime
from parley.core.context import Context

class Sleepy(FedAvg):
    @exchange(like=FedAvg.client)
    def client(self, *args):
        time.sleep(1000)

federation = Federation.from_arrays({i: (np.ones((3, 2), np.float32), np.array([0, 1, 0])) for i in "ab"})
task = make_task(federation, mlp(3), 0)
algorithm = Sleepy()
runtime, _ = open_runtime("pool", Job(algorithm, task, federation), 2)
print(*[worker.process.pid for worker in runtime._workers], flush=True)
message = algorithm.broadcast(task, algorithm.init(task, Key(0)), 1)
runtime.run([Call(i, message, Memory(), Context.alone(Key(0), i)) for i in "ab"], Stamp("", 1, 0, 0))
"""


def test_workers_end_with_the_process_that_started_them():
    """Even in the middle of clients that never end, and though it was killed."""
    with subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True) as main:
        assert main.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in main.stdout.readline().split()]
        assert len(workers) == 2
        deadline = time.monotonic() + 60
        while not all(worker.num_threads() > 1 for worker in workers) and time.monotonic() < deadline:
            time.sleep(0.1)  # their watch begins when they have loaded
        main.kill()
        main.wait()
    _, alive = psutil.wait_procs(workers, timeout=20)
    assert not alive


ABANDONED = """
import socket, sys, torch
from dataclasses import dataclass
from multiprocessing.connection import Connection
from parley.runtimes.arena import Arena, dumps
from parley.runtimes.worker import main

class Task:
    def on(self, device):
        return self

@dataclass
class Job:
    task: Task

ours, theirs = socket.socketpair()
arenas = [Arena() for _ in range(4)]
if sys.argv[1] == "loading":
    packed = torch.frombuffer(bytearray(dumps((Job(Task()), "cpu"), arenas[0])), dtype=torch.uint8)
    Connection(ours.detach()).send(arenas[0].put(packed))
ours.close()
main([theirs.fileno(), *[arena.descriptor for arena in arenas]])
"""


@pytest.mark.parametrize("stage", ["waiting", "loading"])
def test_a_worker_whose_starter_is_gone_before_it_is_up_ends_without_a_word(stage: str):
    done = subprocess.run([sys.executable, "-c", ABANDONED, stage], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_worker_that_is_gone_before_it_is_given_its_job_is_replaced(monkeypatch, same):
    """The pipe to it is broken already."""
    runs = [train(moody({}), federation(3), runtime="inline", **options())]
    original, started = pool.start, []

    def start(module: str, files: tuple[int, ...]) -> fork_server.Process:
        started.append(original(module, files if started else ()))
        if len(started) == 1:
            started[0].wait()
        return started[-1]

    monkeypatch.setattr(pool, "start", start)
    runs.append(train(moody({}), federation(3), runtime="pool", **options()))
    same(*runs)


def test_bad_settings():
    for wrong in ({"quorum": 2.0}, {"availability": 0.0}, {"dropout": -0.1}, {"deadline": 0.0}, {"straggling": -1.0}):
        with pytest.raises(InputError, match="faults"):
            Faults(**wrong)
