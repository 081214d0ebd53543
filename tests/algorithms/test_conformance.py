"""Every member of the LocalUpdate family on heterogeneous quadratics: it is its server optimizer on the surrogate.

Paper 001, Theorems 1 and 2: with full gradients the server's iterates are those of SERVEROPT on the surrogate loss,
step by step, so the run ends in the surrogate's minimiser. Both are compared with formulas written out here and with
`parley.theory.surrogate`. The list of deliberate mistakes at the end shows that the comparison notices them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from parley.algorithms.averaging import local_sgd
from parley.algorithms.averaging import local_update as module
from parley.algorithms.averaging.baselines import Centralised, LocalOnly, Lookahead, MinibatchSGD
from parley.algorithms.averaging.local_update import (
    FOMAML,
    MAML,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedProx,
    FedSGD,
    FedYogi,
    LocalUpdate,
    MetaMinibatchProx,
    Reptile,
)
from parley.algorithms.averaging.server import Adagrad, Adam, Descent, HeavyBall, Nesterov, ServerOptimizer, Yogi
from parley.algorithms.protocol import Cohort
from parley.core.context import Context
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.core.tree import scale
from parley.engine.listeners import Listener
from parley.engine.settings import Sampling
from parley.study.train import make_task, train
from parley.theory.surrogate import All, Explicit, Last, Quadratics
from parley.training.optimizers import LocalOptimizer
from parley.training.transforms import GradientTransform, Stage

GAMMA, ALPHA, K = 0.4, 0.3, 3
ONES, LAST = (1.0,) * K, (0.0,) * (K - 1) + (1.0,)
ODD = (0.5, 0.0, 2.0, 1.5)
SINGLE = (0.0,) * (2 * K) + (1.0,)  # Theta_{2K+1}


@dataclass(frozen=True)
class Case:
    """A method, and what paper 001 says it is: Theta, gamma, alpha, and how its server step relates to gradients."""

    algorithm: LocalUpdate
    theta: tuple[float, ...]
    gamma: float = GAMMA
    alpha: float = 0.0
    rounds: int = 60
    delta: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "delta", self.algorithm.form == "delta")


common = {"lr": GAMMA, "steps": K, "batch": None}
CASES = {
    "fedavg": Case(FedAvg(**common), ONES),
    "fedavg, server step 1.3": Case(FedAvg(**common, server=Descent(1.3)), ONES),
    "reptile": Case(Reptile(**common), ONES, rounds=100),
    "fedprox": Case(FedProx(**common, alpha=ALPHA), ONES, alpha=ALPHA),
    "metaminibatchprox": Case(MetaMinibatchProx(**common, alpha=ALPHA), ONES, alpha=ALPHA),
    "fedsgd": Case(FedSGD(server=Descent(0.9)), (1.0,), gamma=0.0),
    "fedsgd, three gradients": Case(FedSGD(steps=3, server=Descent(0.4)), ONES, gamma=0.0),
    "fomaml": Case(FOMAML(**common, server=Descent(1.0)), LAST),
    "fomaml, proximal": Case(FOMAML(**common, alpha=ALPHA, server=Descent(3.0)), LAST, alpha=ALPHA),
    "maml": Case(MAML(**common, server=Descent(10.0)), SINGLE),
    "maml, proximal": Case(MAML(**common, alpha=ALPHA, server=Descent(25.0)), SINGLE, alpha=ALPHA, rounds=80),
    "any theta": Case(LocalUpdate(**(common | {"steps": 4}), theta=ODD, server=Descent(0.5)), ODD),
    "any theta, proximal": Case(
        LocalUpdate(**(common | {"steps": 4}), theta=ODD, alpha=ALPHA, server=Descent(0.5)), ODD, alpha=ALPHA
    ),
    "all gradients": Case(LocalUpdate(**common, server=Descent(GAMMA)), ONES),
    "epochs": Case(FedAvg(lr=GAMMA, epochs=K, batch=None), ONES),
    "heavy ball": Case(LocalUpdate(**common, server=HeavyBall(0.4, momentum=0.3)), ONES),
    "fedavgm": Case(FedAvgM(**common, server=HeavyBall(0.8, momentum=0.4)), ONES),
    "nesterov": Case(FOMAML(**common, server=Nesterov(1.0, momentum=0.3)), LAST),
    # Adaptive steps end in the fixed point where epsilon dominates sqrt(v): they are then steps of lr/epsilon.
    "fedadam": Case(FedAdam(**common, server=Adam(1.2, 0.3, 0.8, epsilon=1.0)), ONES, rounds=120),
    "fedadam, corrected": Case(
        FedAdam(**common, server=Adam(1.2, 0.3, 0.8, epsilon=1.0, bias_correction=True)), ONES, rounds=120
    ),
    "fedyogi": Case(FedYogi(**common, server=Yogi(1.2, 0.5, 0.9, epsilon=1.0)), ONES, rounds=120),
    "fedadagrad": Case(FedAdagrad(**common, server=Adagrad(3.0, epsilon=1.0)), ONES, rounds=120),
}


class Iterates(Listener):
    """The server's iterate after each round."""

    def start(self, run, rounds: int) -> None:
        self.run, self.values = run, []

    def round(self, record) -> None:
        if record.number:
            weights = self.run.learned.weights(self.run.model())
            self.values.append(weights["weight"].numpy().ravel().copy())


def simulate(server: ServerOptimizer, gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray, rounds: int):
    """SERVEROPT in NumPy: the iterates x_1, x_2, ... (paper 001, Algorithm 1; Reddi et al., Algorithm 2)."""
    previous, y, m, v = x, x, 0 * x, 0 * x
    iterates = []
    for t in range(1, rounds + 1):
        match server:
            case HeavyBall():
                x, previous = x - server.lr * gradient(x) + server.momentum * (x - previous), x
            case Nesterov():
                x, previous = y - server.lr * gradient(y), x
                y = x + server.momentum * (x - previous)
            case Adagrad() | Yogi() | Adam():
                q = gradient(x)
                m = server.beta1 * m + (1 - server.beta1) * q
                if isinstance(server, Adagrad):
                    v = v + q**2
                elif isinstance(server, Yogi):
                    v = v - (1 - server.beta2) * q**2 * np.sign(v - q**2)
                else:
                    v = server.beta2 * v + (1 - server.beta2) * q**2
                corrected = server.bias_correction
                first, second = (1 - server.beta1**t, 1 - server.beta2**t) if corrected else (1.0, 1.0)
                x = x - server.lr * (m / first) / (np.sqrt(v / second) + server.epsilon)
            case _:
                x = x - server.lr * gradient(x)
        iterates.append(x)
    return np.array(iterates)


def theory(theta: Sequence[float]) -> All | Last | Explicit:
    if all(weight == 1 for weight in theta):
        return All(len(theta))
    return Last(len(theta)) if sum(theta) == 1 and theta[-1] == 1 else Explicit(tuple(theta))


def check(case: Case, problem, runtime: str = "inline", weighting: str = "size") -> None:
    """Raises unless the method's iterates are the server optimizer's on the surrogate and end in its minimiser."""
    p = problem.weights(weighting)
    hessian, minimiser = problem.surrogate(case.gamma, case.theta, case.alpha, p)
    clients = Quadratics(problem.A, problem.c, p)
    np.testing.assert_allclose(clients.minimiser(case.gamma, theory(case.theta), case.alpha), minimiser, atol=1e-12)
    iterates = Iterates()
    run = train(
        case.algorithm,
        problem.federation,
        model=problem.model,
        rounds=case.rounds,
        loss="half-squares",
        cohort=Sampling(weights=weighting),
        runtime=runtime,
        listeners=[iterates],
    )
    # Sending the change of the model multiplies what the server sees by gamma.
    factor = case.gamma if case.delta else 1.0
    steps = simulate(case.algorithm.server, lambda x: factor * hessian @ (x - minimiser), problem.start, 20)
    np.testing.assert_allclose(iterates.values[:20], steps, rtol=1e-12, atol=1e-12)
    assert run.state["model"]["weight"].dtype == torch.float64
    assert np.linalg.norm(problem.start - minimiser) > 0.1
    np.testing.assert_allclose(iterates.values[-1], minimiser, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("runtime", ["inline", "stacked"])
def test_it_is_its_server_optimizer_on_the_surrogate(quadratics, name: str, runtime: str):
    check(CASES[name], quadratics(0), runtime)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fomaml", "maml, proximal", "any theta, proximal"])
@pytest.mark.parametrize("seed", [1, 2])
def test_on_other_problems_and_with_uniform_weights(quadratics, name: str, seed: int):
    check(CASES[name], quadratics(seed), "inline", "uniform")
    check(CASES[name], quadratics(seed), "stacked", "size")


def test_the_change_of_the_model_is_gamma_times_the_gradients(quadratics):
    """FedAvg with server step eta is LocalUpdate with server step gamma eta, also with minibatches."""
    problem = quadratics(3)
    runs = [
        train(
            algorithm,
            problem.federation,
            model=problem.model,
            rounds=15,
            loss="half-squares",
            runtime="inline",
            cohort=2,
            seed=4,
        )
        for algorithm in (
            FedAvg(lr=GAMMA, epochs=2, batch=4, alpha=ALPHA, server=Descent(0.7)),
            LocalUpdate(lr=GAMMA, epochs=2, batch=4, alpha=ALPHA, server=Descent(0.7 * GAMMA)),
        )
    ]
    a, b = (run.state["model"]["weight"].numpy() for run in runs)
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_theorem_1_in_expectation_needs_independent_batches(quadratics):
    """With batches drawn independently at each step the expected update is the surrogate's gradient."""
    problem = quadratics(5)
    task = make_task(problem.federation, problem.model, 0, "half-squares")
    algorithm = LocalUpdate(lr=GAMMA, steps=K, batch=2, order="independent")
    data = problem.federation.client("0")
    message = algorithm.broadcast(task, algorithm.init(task, Key(0)), 1)
    count = 1500
    updates = np.array(
        [
            algorithm.client(task, message, Memory(), data, context).message["update"]["weight"].numpy().ravel()
            for context in [Context.alone(Key(9).fold(i)) for i in range(count)]
        ]
    )
    alone = replace(problem, A=problem.A[:1], c=problem.c[:1], sizes=problem.sizes[:1])
    hessian, minimiser = alone.surrogate(GAMMA, ONES, 0.0, np.ones(1))
    error = updates.std(0) / np.sqrt(count)
    assert np.all(np.abs(updates.mean(0) - hessian @ (problem.start - minimiser)) < 4.5 * error)


# -- baselines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "algorithm", [Centralised(**common), MinibatchSGD(batch=None, server=Descent(0.9)), Lookahead(**common)], ids=repr
)
def test_pooled_baselines_reach_the_true_optimum(quadratics, algorithm: LocalUpdate):
    problem = quadratics(0)
    run = train(algorithm, problem.federation, model=problem.model, rounds=150, loss="half-squares")
    optimum = Quadratics(problem.A, problem.c, problem.weights("size")).empirical_minimiser
    np.testing.assert_allclose(run.state["model"]["weight"].numpy().ravel(), optimum, atol=1e-10)


def test_clients_alone_reach_their_own_optima(quadratics):
    problem = quadratics(0)
    task = make_task(problem.federation, problem.model, 0, "half-squares")
    algorithm = LocalOnly(lr=0.9, steps=20, batch=None)
    for client, own in zip(problem.federation.ids, problem.c, strict=True):
        memory = Memory()
        for number in range(10):
            reply = algorithm.client(
                task, Message(), memory, problem.federation.client(client), Context.alone(Key(number))
            )
            assert reply.memory is not None
            assert reply.message.tensors == {}
            memory = reply.memory
        np.testing.assert_allclose(memory["model"]["weight"].numpy().ravel(), own, atol=1e-10)


# -- deliberate mistakes --------------------------------------------------------------------------------------------

Patch = Callable[[pytest.MonkeyPatch], None]


def flipped_pull(patch: pytest.MonkeyPatch) -> None:
    pull = module.pull
    patch.setattr(module, "pull", lambda centre, strength: pull(centre, -strength))


def unsquared_pull(patch: pytest.MonkeyPatch) -> None:
    """The gradient of alpha ||x - centre||: the direction alone."""

    def pull(centre, strength: float) -> GradientTransform:
        def apply(g, w, c):
            away = [a - b for a, b in zip(w, c, strict=True)]
            norm = torch.stack([a.square().sum() for a in away]).sum().sqrt().clamp(min=1e-12)
            return [a + strength * d / norm for a, d in zip(g, away, strict=True)]

        return GradientTransform((Stage(apply, (centre,)),))

    patch.setattr(module, "pull", pull)


def pull_towards_zero(patch: pytest.MonkeyPatch) -> None:
    pull = module.pull
    patch.setattr(module, "pull", lambda centre, strength: pull(scale(centre, 0.0), strength))


def doubled_pull(patch: pytest.MonkeyPatch) -> None:
    """alpha ||.||^2 in place of alpha/2 ||.||^2."""
    pull = module.pull
    patch.setattr(module, "pull", lambda centre, strength: pull(centre, 2 * strength))


def weights_above_one(patch: pytest.MonkeyPatch) -> None:
    shares = Cohort.shares
    patch.setattr(Cohort, "shares", lambda self, answered: {i: 1.05 * w for i, w in shares(self, answered).items()})


def sizes_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cohort, "shares", lambda self, answered: dict.fromkeys(answered, 1 / len(answered)))


def theta_shifted(patch: pytest.MonkeyPatch) -> None:
    core = local_sgd.train

    def shifted(*args, theta, **options):
        weights = {"all": ONES, "last": LAST}.get(theta, theta)
        return core(*args, theta=None if theta is None else (*weights[1:], 0.0), **options)

    patch.setattr(local_sgd, "train", shifted)


def one_step_more(patch: pytest.MonkeyPatch) -> None:
    core = local_sgd.train
    patch.setattr(local_sgd, "train", lambda *a, work, **o: core(*a, work=replace(work, steps=work.steps + 1), **o))


def server_step_times_gamma(patch: pytest.MonkeyPatch) -> None:
    step = Descent.step
    patch.setattr(Descent, "step", lambda self, x, q, slots: step(replace(self, lr=self.lr * GAMMA), x, q, slots))


def first_order(patch: pytest.MonkeyPatch) -> None:
    """The gradient at the adapted model, not through the adaptation: Theta_{K+1}."""

    def gradient(task, x, data, key, *, work, lr, alpha):
        return local_sgd.train(
            task,
            x,
            data,
            key,
            work=replace(work, steps=K + 1),
            optimizer=LocalOptimizer(lr=lr),
            theta="last",
            transform=module.pull(x, alpha) if alpha else None,
        )

    patch.setattr(module, "meta_gradient", gradient)


def momentum_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module, "_slots", lambda state: {"previous": state["model"], "settled": state["model"]})


def extrapolated_point_reported(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Nesterov, "iterate", lambda self, x, slots: x)


def correction_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Adam, "second_correction", lambda self, t: 1.0)


MISTAKES = [
    ("fedprox", flipped_pull), ("fedprox", unsquared_pull), ("fedprox", pull_towards_zero), ("fedprox", doubled_pull),
    ("fomaml, proximal", flipped_pull), ("any theta, proximal", doubled_pull),
    ("fedavg", weights_above_one), ("fedsgd", weights_above_one), ("fedavg", sizes_ignored), ("maml", sizes_ignored),
    ("any theta", theta_shifted), ("fomaml", theta_shifted), ("all gradients", theta_shifted),
    ("fedavg", one_step_more), ("fomaml", one_step_more),
    ("all gradients", server_step_times_gamma), ("fedavg", server_step_times_gamma),
    ("maml", first_order), ("maml, proximal", first_order),
    ("heavy ball", momentum_forgotten), ("nesterov", extrapolated_point_reported),
    ("fedadam, corrected", correction_forgotten),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mistake"), MISTAKES, ids=lambda value: getattr(value, "__name__", value))
def test_mistakes_are_noticed(quadratics, monkeypatch: pytest.MonkeyPatch, name: str, mistake: Patch):
    case = replace(CASES[name], rounds=20)  # the first rounds give every one of them away
    mistake(monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check(case, quadratics(0))
