"""The device path without a GPU: tensors of a device that has no memory go through local training and evaluation.

A fake tensor has a device and a shape but no numbers. An operation on tensors of two devices raises, so whatever is
left behind on the CPU makes these tests fail. (A torch built for the CPU cannot differentiate fake CUDA tensors; the
device here is one that torch knows by name only, and is treated by the library as any other than the CPU.)
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from parley.algorithms.averaging.feddyn import FedDyn
from parley.algorithms.averaging.fednova import FedNova
from parley.algorithms.averaging.local_update import MAML, FedAvg, FedProx
from parley.algorithms.averaging.scaffold import Scaffold
from parley.algorithms.parts.fedals import FedALS
from parley.algorithms.protocol import Algorithm, Cohort
from parley.core.context import Context, Secrets
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.runtimes import Job, execute, stacked
from parley.runtimes.auto import choose
from parley.runtimes.protocol import Call, EvaluationCall
from parley.training.batches import Work
from parley.training.devices import resolve, wide
from parley.training.local import full_gradient, train
from parley.training.losses import losses
from parley.training.optimizers import Kept, LocalOptimizer
from parley.training.randomness import DrawnOnCPU, forward_randomness
from parley.training.stack import ClientStack
from parley.training.task import Task
from parley.training.transforms import GradientTransform, Stage, add, pull

GPU = torch.device("gpu", 0)
CPU = torch.device("cpu")


@pytest.fixture
def fake(monkeypatch) -> Iterator[FakeTensorMode]:
    """Tensors without numbers; which samples a step sees and how far steps lead is still decided by real ones."""
    monkeypatch.setattr(Work, "plan", real(Work.plan))
    monkeypatch.setattr(Work, "stacked", real(Work.stacked))
    monkeypatch.setattr(LocalOptimizer, "_moved", real(LocalOptimizer._moved))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, OneDevice(mode):
        yield mode


def real(function):
    """The function with tensors that have numbers."""

    def called(*args, **kwargs):
        with _disable_current_modes():
            return function(*args, **kwargs)

    return called


class OneDevice(TorchDispatchMode):
    """Refuses what fake tensors let pass, convolutions over two devices, and takes real tensors for fake ones."""

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode

    def faked(self, value: Tensor) -> Tensor:
        if not isinstance(value, FakeTensor):
            return self.mode.from_tensor(value)
        value.constant = None  # otherwise it would be moved for real
        return value

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        args, kwargs = tree_map_only(Tensor, self.faked, (args, kwargs or {}))
        found = {value.device for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor) and value.ndim}
        moves = func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_)
        if len(found) > 1 and not moves:
            raise RuntimeError(f"{func} was given tensors of two devices")
        return func(*args, **kwargs)


class Normalised(nn.Module):
    """Convolutions, BatchNorm, a frozen layer and a constant that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 3)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.frozen(torch.relu(self.norm(self.conv(x))).mean((2, 3)) + self.shift))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, 3))


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))


def dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Dropout(0.5), nn.Linear(5, 3))


MODELS = [mlp, cnn, Normalised, dropout]
SIZES = (9, 7, 4)


def task_of(make=mlp) -> Task:
    module = real(make)()
    info = DataInfo("toy", (1, 4, 4), 3, "classification")
    return Task(module, losses["cross-entropy"], info, 3).on(GPU)


def samples(size: int, device: torch.device = GPU) -> ClientData:
    return ClientData(torch.zeros(size, 1, 4, 4, device=device), torch.zeros(size, dtype=torch.int64, device=device))


def devices(tensors) -> set[str]:
    return {str(value.device) for value in tensors}


OPTIMIZERS = [
    LocalOptimizer(lr=0.1),
    LocalOptimizer("sgd", 0.1, {"momentum": 0.9, "weight_decay": 1e-3}),
    LocalOptimizer("rmsprop", 0.1),
]


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_client(fake, make, optimizer: LocalOptimizer):
    task = task_of(make)
    x = task.initial()
    transform = pull(x, 0.1) | add({name: torch.ones_like(value) for name, value in x.items()}, -0.5)
    trained = train(
        task,
        x,
        samples(9),
        Key(0),
        work=Work(epochs=2, batch=4),
        optimizer=optimizer,
        transform=transform,
        theta="all",
        clip=1.0,
    )
    for tree in (trained.parameters, trained.gradients, trained.buffers):
        assert devices(tree.values()) <= {"gpu:0"}
    assert devices([trained.loss]) == {"gpu:0"}
    assert devices(full_gradient(task, x, samples(9), Key(0)).values()) == {"gpu:0"}


def test_kept_momentum(fake):
    task = task_of()
    slots = {f"momentum_buffer/{name}": torch.zeros_like(value) for name, value in task.initial().items()}
    trained = train(
        task, task.initial(), samples(9), Key(0), work=Work(steps=2, batch=4), optimizer=OPTIMIZERS[1], kept=Kept(slots)
    )
    assert devices(trained.optimizer.slots.values()) == {"gpu:0"}


@pytest.mark.parametrize("theta", [None, "all", "last", [0.5, 1.0]])
@pytest.mark.parametrize("batch", [None, 4])
def test_theta_and_full_batches(fake, theta, batch: int | None):
    task = task_of(cnn)
    train(
        task, task.initial(), samples(9), Key(0), work=Work(steps=2, batch=batch), optimizer=OPTIMIZERS[0], theta=theta
    )


def test_a_tensor_left_behind_is_noticed(fake):
    task = task_of()
    behind = {name: torch.zeros(value.shape) for name, value in task.initial().items()}
    with pytest.raises(RuntimeError, match="device"):
        train(
            task, task.initial(), samples(9), Key(0), work=Work(steps=1), optimizer=OPTIMIZERS[0], transform=add(behind)
        )
    with pytest.raises(RuntimeError, match="device"):
        train(task, task.initial(), samples(9, CPU), Key(0), work=Work(steps=1), optimizer=OPTIMIZERS[0])
    constant = GradientTransform((Stage(lambda g, w: [each + torch.ones(each.shape) for each in g]),))
    with pytest.raises(RuntimeError, match="device"):
        train(task, task.initial(), samples(9), Key(0), work=Work(steps=1), optimizer=OPTIMIZERS[0], transform=constant)


# --- runtimes ---


@real
def job_of(method: Algorithm, make=mlp) -> Job:
    task = task_of(make)
    clients = tuple(samples(size, CPU) for size in SIZES)
    federation = Federation(
        task.info, tuple("abc"), InMemory(clients), test=clients[0], held_out=InMemory(clients[::-1])
    )
    return Job(method, task, federation)


@real
def calls_of(job: Job) -> list[Call]:
    """Those of the first exchange, on the CPU as the server and the store have them."""
    server = job.task.on(CPU)
    state = job.algorithm.init(server, Key(0))
    assert devices(state.tensors.values()) <= {"cpu"}
    cohort = Cohort(tuple("abc"), (1 / 3,) * 3, everyone=tuple("abc"))
    course = job.algorithm.round(server, state, cohort, 1, Key(0))
    messages = next(course).messages
    course.close()
    return [
        Call(i, message, Memory(), Context(i, 1, "client", 0, Key(1).fold(i), Secrets(b"")))
        for i, message in messages.items()
    ]


METHODS = [
    FedAvg(steps=2, batch=4),
    FedAvg(steps=2, batch=4, keep=True, options={"momentum": 0.9}),
    FedProx(batch=4),
    Scaffold(steps=2, batch=4),
    FedNova(epochs=2, batch=4),
    FedDyn(steps=2, batch=4),
    FedALS(steps=2, batch=4),
    MAML(steps=2, batch=4),
]


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_stacks_and_single_clients(fake, monkeypatch, method: Algorithm, make):
    """Dense layers by matrix products of their own, convolutions through torch.func; replies come back to the CPU."""
    for module in (execute, stacked):  # there are no numbers to look at
        monkeypatch.setattr(module, "finite" if module is execute else "_finite_rows", _sound(module))
    job = job_of(method, make)
    calls = calls_of(job)
    alone = [execute.attempt(job, call) for call in calls]
    data = [execute.client_data(job, call.recipient) for call in calls]
    together = stacked._split(job, stacked._together(job, calls, ClientStack.of(data)), calls)
    for one, row in zip(alone, together, strict=True):
        for reply in (one, row):
            assert not isinstance(reply, execute.Failure), reply
            assert devices(reply.message.tensors.values()) == {"cpu"}
            assert devices(reply.memory.tensors.values() if reply.memory is not None else ()) <= {"cpu"}
        assert one.message.tensors.keys() == row.message.tensors.keys()
    again = [  # with the memories of the first round
        Call(call.recipient, call.message, reply.memory or Memory(), call.context)
        for call, reply in zip(calls, together, strict=True)
    ]
    stacked._split(job, stacked._together(job, again, ClientStack.of(data)), again)
    for call in again:
        assert not isinstance(execute.attempt(job, call), execute.Failure)


def _sound(module):
    if module is execute:
        return lambda payload: True
    return lambda payloads, count: [True] * count


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("client", [None, "b"])
def test_evaluation(fake, monkeypatch, make, client: str | None):
    """Everything but turning the sums into Python numbers, which fake tensors do not have."""
    monkeypatch.setattr(execute, "float", lambda value: _on_the_gpu(value), raising=False)
    monkeypatch.setattr(execute, "int", lambda value: _on_the_gpu(value), raising=False)
    job = job_of(FedAvg(), make)
    model = real(lambda: job.algorithm.learned(job.server).message(job.algorithm.init(job.server, Key(0))))()
    assert devices(model.tensors.values()) == {"cpu"}
    memory = None if client is None else Memory.of(buffers={})
    score = execute.score(job, EvaluationCall(model, memory, client, batch=4, keep=True))
    assert devices([score.outputs]) == {"cpu"}
    assert score.outputs.shape == (9, 3) if client is None else (7, 3)


def _on_the_gpu(value: Tensor) -> int:
    assert str(value.device) == "gpu:0"
    return 1


def test_public_data_and_personal_buffers_are_where_clients_train(fake):
    task = Task(None, losses["mse"], DataInfo("toy", (4,), 1, "regression"), 2, public=torch.zeros(3, 4))
    assert devices([task.on(GPU).public]) == {"gpu:0"}
    assert devices([task.on(GPU).on(CPU).public]) == {"cpu"}
    assert task.on(task.device) is task


# --- random numbers ---


def test_random_numbers_are_drawn_on_the_cpu(fake):
    """A generator of the GPU would raise: there is none."""
    x = torch.zeros(4, 5, device=GPU)
    drawn = []

    class Watch(DrawnOnCPU):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if torch.Tag.nondeterministic_seeded in func.tags:
                drawn.append(str(func))
            return super().__torch_dispatch__(func, types, args, kwargs)

    with Watch():
        for made in (
            F.dropout(x, 0.5),
            torch.rand(3, device=GPU),
            torch.randn_like(x),
            torch.empty_like(x).bernoulli_(0.5),
            torch.bernoulli(x),
            torch.randperm(4, device=GPU),
        ):
            assert str(made.device) == "gpu:0"
    assert len(drawn) >= 6


def test_what_is_drawn_is_what_the_cpu_draws(monkeypatch):
    """On a device that computes as the CPU does but is another one for the mode, the same numbers come out."""
    monkeypatch.setattr("parley.training.randomness.on_cpu", lambda device: False)
    x = torch.arange(12.0).reshape(3, 4)

    def draws() -> list[Tensor]:
        y = x.clone()
        return [F.dropout(x, 0.3), torch.rand(2, 2), torch.randn_like(x), y.bernoulli_(0.5), y]

    with forward_randomness(Key(3)):
        plain = draws()
    with forward_randomness(Key(3)), DrawnOnCPU():
        through = draws()
    for a, b in zip(plain, through, strict=True):
        assert torch.equal(a, b)
    assert through[3] is not plain[3]


# --- names ---


def test_devices_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve("auto") == resolve("cpu") == CPU
    for name, sentence in (
        ("cuda", "the device is 'cuda', but torch finds no GPU of CUDA on this machine; use device = \"auto\" or"),
        ("cuda:1", "the device is 'cuda:1', but torch finds no GPU of CUDA"),
        ("mps", "the device is 'mps', but torch finds no GPU of Apple's"),
        ("gpu", "there is no device 'gpu': choose auto, cpu, cuda, cuda:1 or mps."),
        ("meta", "there is no device 'meta'"),
        ("cuda:x", "there is no device 'cuda:x'"),
    ):
        with pytest.raises(InputError) as caught:
            resolve(name)
        assert str(caught.value).startswith(sentence)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve("auto") == resolve("cuda") == torch.device("cuda", 0)
    assert resolve("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(InputError, match="the last one of this machine is 'cuda:1'"):
        resolve("cuda:2")
    assert wide(torch.device("mps")) == torch.float32


def test_on_a_gpu_convolutions_are_stacked(fake, monkeypatch):
    monkeypatch.setattr(stacked, "_finite_rows", _sound(stacked))
    name, why = choose(job_of(FedAvg(steps=1, batch=4), cnn), 2, None, 10**12)
    assert (name, why) == ("stacked", "on gpu:0")
    name, why = choose(job_of(FedAvg(steps=1, batch=4), Normalised), 2, None, 10**12)
    assert name == "inline"
    assert why.startswith("the model has running statistics")
