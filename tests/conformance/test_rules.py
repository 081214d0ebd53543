"""Update rules from elsewhere: right ones pass, and every classic mistake is named by a check that fails."""

from dataclasses import dataclass

import numpy as np
import pytest

from parley.cli.main import main
from parley.conformance import Optimum, Promise, Surrogate, UpdateRule, check_rule, load_method
from parley.core.errors import InputError
from parley.theory.surrogate import Last


@dataclass
class ScaffoldRule:
    """SCAFFOLD as one would write it in NumPy, with switches for what libraries get wrong."""

    promise: Promise = Optimum()  # noqa: RUF009
    lr: float = 0.1
    steps: int = 3
    sign: float = 1.0
    """-1: y - eta (g + c_i - c)."""
    start: str = "zeros"
    """'weights': the clients' variates begin as copies of the model."""
    weight_sum: float = 1.0
    """What the weights of the average sum to."""
    forget: bool = False
    """Variates do not survive the round."""
    scale: float = 1.0
    """The mean gradient is this times too large."""

    def init(self, d, weights):
        self.p, self.c_i, self.c = weights * self.weight_sum, None, np.zeros(d)

    def round(self, x, gradient):
        if self.c_i is None or self.forget:
            one = x if self.start == "weights" else np.zeros_like(x)
            self.c_i = np.tile(one, (len(self.p), 1))
        models, variates = [], []
        for i in range(len(self.p)):
            y = x
            for _ in range(self.steps):
                y = y - self.lr * (gradient(i, y) - self.sign * (self.c_i[i] - self.c))
            models.append(y)
            variates.append(self.c_i[i] - self.c + self.scale * (x - y) / (self.steps * self.lr))
        self.c = self.c + self.p @ (np.array(variates) - self.c_i)
        self.c_i = np.array(variates)
        return self.p @ np.array(models)


@dataclass
class FedProxRule:
    """FedProx with the norm squared, or not."""

    alpha: float = 0.5
    squared: bool = True
    factor: float = 1.0

    @property
    def promise(self):
        return Surrogate(0.1, 3, self.alpha)

    def init(self, d, weights):
        self.p = weights

    def round(self, x, gradient):
        models = []
        for i in range(len(self.p)):
            y = x
            for _ in range(3):
                pull = y - x if self.squared else (y - x) / max(np.linalg.norm(y - x), 1e-12)
                y = y - 0.1 * (gradient(i, y) + self.factor * self.alpha * pull)
            models.append(y)
        return self.p @ np.array(models)


@dataclass
class FOMAMLRule:
    promise: Promise = Surrogate(0.05, Last(3))  # noqa: RUF009

    def init(self, d, weights):
        self.p = weights

    def round(self, x, gradient):
        total = 0 * x
        for i, p in enumerate(self.p):
            y = x
            for _ in range(2):
                y = y - 0.05 * gradient(i, y)
            total = total + p * gradient(i, y)
        return x - 0.3 * total


RIGHT = [ScaffoldRule(), FedProxRule(), FedProxRule(alpha=0.0), FOMAMLRule()]
WRONG = {
    "sign of the control variate": ScaffoldRule(sign=-1.0),
    "weights that do not sum to one": ScaffoldRule(weight_sum=0.9),
    "variates initialised with weights": ScaffoldRule(start="weights"),
    "variates forgotten between rounds": ScaffoldRule(forget=True),
    "mean gradient scaled wrongly": ScaffoldRule(scale=3.0),
    "unsquared proximal norm": FedProxRule(squared=False),
    "proximal term twice too strong": FedProxRule(factor=2.0),
    "FedAvg that promises the optimum": FedProxRule(alpha=0.0),
}


@pytest.mark.parametrize("rule", RIGHT, ids=repr)
def test_right_rules_pass(rule):
    assert isinstance(rule, UpdateRule)
    checks = check_rule(rule)
    assert len(checks) == 4
    assert all(check.passed for check in checks), checks


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_noticed(mistake):
    rule = WRONG[mistake]
    if mistake.startswith("FedAvg"):
        rule = type("Boast", (FedProxRule,), {"promise": Optimum()})(alpha=0.0)
    assert not all(check.passed for check in check_rule(rule))


RULES = """
from parley.conformance import Optimum, Surrogate

class Average:
    promise = {promise}

    def init(self, d, weights):
        self.weights = weights

    def round(self, x, gradient):
        moved = 0
        for i, p in enumerate(self.weights):
            y = x
            for _ in range(3):
                y = y - 0.1 * gradient(i, y)
            moved = moved + p * (y - x)
        return x + moved

nothing = 3
"""


@pytest.mark.parametrize(("promise", "code"), [("Surrogate(0.1, 3)", 0), ("Optimum()", 1)])
def test_the_command_takes_rules_from_files(tmp_path, capsys, promise, code):
    file = tmp_path / "rules.py"
    file.write_text(RULES.format(promise=promise))
    with pytest.raises(SystemExit) as ended:
        main(["conformance", f"{file}:Average"])
    assert ended.value.code == code
    out = capsys.readouterr().out
    assert "Average: one client" in out
    assert ("FAILED" in out) == bool(code)


def test_what_is_no_rule_is_refused(tmp_path):
    file = tmp_path / "rules.py"
    file.write_text(RULES.format(promise="Optimum()"))
    for path, says in (
        (f"{file}:Other", "defines no"), (f"{file}:nothing", "is no method"), ("no.such.package:x", "neither"),
        (f"{tmp_path}/none.py:x", "there is no file"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=says):
            load_method(path)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["fednova", "--runtime", "inline"], 0, "all 6 checks passed"),
        (["kernel-fedavg"], 0, "all 7 checks passed"),
        (["kernel-fedavg", "--runtime", "stacked"], 2, "nothing to check on 'stacked'; use 'inline'"),
        (["fednove"], 2, "did you mean 'fednova'"),
        (["fednova", "--runtime", "inlin"], 2, "did you mean 'inline'"),
    ],
)
def test_the_command(capsys, arguments, code, says):
    with pytest.raises(SystemExit) as ended:
        main(["conformance", *arguments])
    shown = capsys.readouterr()
    assert ended.value.code == code, shown
    assert says in shown.out + shown.err
