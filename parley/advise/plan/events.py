"""Events per weight: where a table has too few for its model, what is learned is noise, however low training's loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

import parley.models as models
from parley.advise.plan.advice import Recommendation
from parley.advise.plan.pilot import Arm
from parley.algorithms.averaging.local_sgd import LocalSGD
from parley.engine.settings import Evaluation
from parley.study.study import Study

FEWEST = 10
"""Samples of the rarer class for each weight of a regression, below which it needs a penalty."""
_CLIENTS = 1000
"""Clients whose labels are counted at most."""


@dataclass(frozen=True)
class Events:
    """Of a table with two classes: training samples of the rarer one, and the weights of a regression on its inputs."""

    rarer: int
    samples: int
    weights: int

    @property
    def few(self) -> bool:
        return self.rarer < FEWEST * self.weights

    @classmethod
    def of(cls, study: Study) -> Events | None:
        """None for what is no table of two classes, or has too many clients to count."""
        federation = study.federation()
        info = federation.info
        if info.kind != "classification" or info.outputs != 2 or len(info.shape) != 1 or len(federation) > _CLIENTS:
            return None
        counts = sum(np.bincount(federation.client(i).y.numpy(), minlength=2) for i in federation.ids)
        return cls(int(np.min(counts)), int(np.sum(counts)), info.shape[0] + 1)

    def regression(self, study: Study) -> Study:
        """The study with a linear model."""
        return replace(study, model=models.linear(zero=True))

    @property
    def penalty(self) -> float:
        """|w|^2 / 2 off the log-likelihood of all samples, as weight decay."""
        return 1 / self.samples

    def arm(self, arm: Arm) -> Arm:
        """The candidate with the penalty."""
        assert isinstance(arm.algorithm, LocalSGD)
        options = {**arm.algorithm.options, "weight_decay": self.penalty}
        return replace(arm, algorithm=replace(arm.algorithm, options=options))

    def reasons(self, made: Sequence[Recommendation]) -> list[Recommendation]:
        """What is said of the regression, whose server averages and nothing else."""
        plain = "plain averaging; momentum would only go faster to where so few samples lead."
        return [
            self._model,
            *(
                replace(reason, reason=plain, formula="") if reason.what == "server optimizer" else reason
                for reason in made
            ),
        ]

    @property
    def _model(self) -> Recommendation:
        return Recommendation(
            "model",
            "penalised logistic regression",
            f"{self.rarer:,} training samples of the rarer class are {self.rarer / self.weights:.2g} for each weight "
            f"of a regression on these inputs; below about {FEWEST} a larger model, or one without a penalty, learns "
            "noise, and lower training loss means higher loss on new samples. Inputs should be standardised. A few "
            "dozen held-out samples of that class are too few to rank models by.",
            f"weight decay 1/N = 1/{self.samples:,}, that is |w|^2/2 off the log-likelihood",
        )


def judged_by_held_out(study: Study, rounds: int) -> Study:
    """The study with the best round chosen, and stopped, by the loss of clients' held-out samples, where there are any
    and the study names nothing else."""
    settings = study.evaluation or Evaluation()
    named = settings.headline is not None or settings.metric != "auto" or settings.patience is not None
    if study.federation().held_out is None or named or settings.clients == "none" or settings.target is not None:
        return study
    clients = "all" if settings.clients == "auto" and len(study.federation()) <= _CLIENTS else settings.clients
    patience = max(5, rounds // 5)
    return replace(study, evaluation=replace(settings, clients=clients, headline="clients/loss", patience=patience))


def early_stopping(best: Study) -> Recommendation | None:
    settings = best.evaluation
    if settings is None or settings.headline != "clients/loss" or settings.patience is None:
        return None
    return Recommendation(
        "early stopping",
        f"after {settings.patience} evaluations without a lower clients/loss",
        "clients hold samples out, which say when training stops helping: take the best round (--best).",
    )
