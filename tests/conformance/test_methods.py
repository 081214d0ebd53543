"""Methods of one's own, as the classes they are: right ones pass, wrong ones do not, what cannot be checked is said."""

from dataclasses import dataclass, field

import numpy as np
import pytest

import parley as pl
from parley.cli.main import main
from parley.conformance import Averaged, Optimum, OwnOptimum, Surrogate, cases, load_method, planned
from parley.conformance.problem import quadratic_problem
from parley.core.errors import InputError
from parley.theory.surrogate import All


@dataclass(frozen=True)
class Mine(pl.FedAvg):
    steps: int | None = 3

    @property
    def promise(self):
        return Surrogate(self.lr, self.steps, self.alpha)


@dataclass(frozen=True)
class Variates(pl.Scaffold):
    steps: int | None = 3
    promise = Optimum(partial=True)


@dataclass(frozen=True)
class Own(pl.LocalOnly):
    promise = OwnOptimum(partial=True)


def checked(method, statement, runtime="inline"):
    """One line of those that a method has."""
    (case,) = [case for case in cases(method) if statement in case.statement]
    return case.check(runtime)


def test_every_line_of_a_right_method_holds():
    lines = cases(Mine())
    assert [case.statement.rpartition(", ")[2] for case in lines[:4]] == [
        *(f"problem {i}" for i in (1, 2, 3)),
        "one client",
    ]
    checks = [case.check("stacked") for case in lines[2:]]
    assert all(check.passed for check in checks), checks


@pytest.mark.parametrize("method", [Variates(), Own()], ids=["variates", "own"])
@pytest.mark.parametrize("statement", ["2 of 4 clients", "replies lost"])
def test_promises_that_hold_with_some_of_the_clients(method, statement):
    assert checked(method, statement).passed


@dataclass(frozen=True)
class OneTooMany(Mine):
    """A pull that the promise does not know."""

    @pl.exchange(like=pl.FedAvg.client)
    def client(self, task, message, memory, data, context):
        x = message["model"]
        local = self.train(task, x, message, memory, data, context, transform=pl.transforms.pull(x, 0.5))
        return self.reply(task, local, send={"update": pl.tree.subtract(x, local.parameters)})


@dataclass(frozen=True)
class Sums(Mine):
    """Weights that do not sum to one with part of the clients: divided by all clients, not by those that answered."""

    def aggregate(self, task, state, replies, number, key):
        share = replies.count / task.population
        return state.replace(model=pl.tree.add(state["model"], replies.mean_change("update"), -share))


@pytest.mark.parametrize(
    ("method", "statement"),
    [(OneTooMany(), "problem 1"), (Sums(), "2 of 4 clients")],
    ids=["pull", "weights"],
)
def test_mistakes_are_noticed(method, statement):
    assert not checked(method, statement).passed


def oscillating(last=None):
    """A server step at which the largest eigenvalue of I - eta H is -1: in that direction x swings for ever, evenly."""
    hessian = quadratic_problem().clients.hessian(0.1, All(3))
    eta = 2 / (0.1 * np.linalg.eigvalsh((hessian + hessian.T) / 2)[-1])

    @dataclass(frozen=True)
    class Swings(pl.FedAvg):
        steps: int | None = 3
        server: object = field(default_factory=lambda: pl.Descent(lr=eta))
        promise = Surrogate(0.1, 3) if last is None else Averaged(Surrogate(0.1, 3), last=last, rounds=400)

    return Swings()


def test_the_mean_of_iterates_is_held_against_the_point_where_the_last_oscillates():
    assert not checked(oscillating(last=1), "problem 1", "stacked").passed
    assert checked(oscillating(last=2), "problem 1", "stacked").passed


METHODS = """
from dataclasses import dataclass
import parley as pl
from parley.conformance import Surrogate

@dataclass(frozen=True)
class Mine(pl.FedAvg):
    steps: int | None = 3
    promise = Surrogate(0.1, {steps})

@dataclass(frozen=True)
class Silent(pl.FedAvg):
    pass

@dataclass(frozen=True)
class Needy(pl.Algorithm):
    size: int

moon = type("Moon", (pl.MOON,), {{"promise": Surrogate(0.1, 1)}})()
nothing = 3
"""


def test_the_command_takes_methods_from_files(tmp_path, capsys):
    file = tmp_path / "methods.py"
    file.write_text(METHODS.format(steps=2))
    with pytest.raises(SystemExit) as ended:
        main(["conformance", f"{file}:Mine", "--runtime", "stacked"])
    assert ended.value.code == 1
    assert "3 of 5 checks FAILED" in capsys.readouterr().out


def test_what_cannot_be_checked_is_refused_in_a_sentence(tmp_path):
    file = tmp_path / "methods.py"
    file.write_text(METHODS.format(steps=3))
    for name, says in (("Needy", "checked = Needy"), ("nothing", "is no method"), ("Other", "defines no 'Other'")):
        with pytest.raises(InputError, match=says):
            load_method(f"{file}:{name}")
    with pytest.raises(InputError, match="does not say where it settles"):
        cases(load_method(f"{file}:Silent"))
    with pytest.raises(InputError, match="works client by client"):
        planned(load_method(f"{file}:moon"), ["stacked"])


def test_a_client_that_fails_is_named(tmp_path):
    @dataclass(frozen=True)
    class Fails(Mine):
        @pl.exchange(like=pl.FedAvg.client)
        def client(self, task, message, memory, data, context):
            if context.id == "2":
                raise ValueError("no such thing")
            return super().client(task, message, memory, data, context)

    with pytest.raises(InputError, match="client '2' failed in round 1: "):
        checked(Fails(), "problem 1")
