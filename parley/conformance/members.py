"""Every member of the LocalUpdate family with fixed settings, and the surrogate it should minimise (Table 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from parley.algorithms.averaging import baselines
from parley.algorithms.averaging import local_update as family
from parley.algorithms.averaging.local_update import Averaging, LocalUpdate
from parley.algorithms.averaging.server import Adagrad, Adam, Descent, HeavyBall, Nesterov, ServerOptimizer, Yogi
from parley.conformance.quadratics import QuadraticSetting
from parley.theory.servers import SERVERS, error_factors, tune
from parley.theory.surrogate import All, Last, Quadratics, Theta
from parley.theory.theta import Array, as_theta

__all__ = ["ALPHA", "WEIGHTS", "Member", "members", "server"]

ALPHA = 0.5
"""The proximal strength of those that have one."""
WEIGHTS = (0.5, 0.0, 1.0, 2.0)
"""A Theta of no particular form."""


@dataclass(frozen=True)
class Member:
    """A method, the surrogate it should minimise, and how many rounds that takes."""

    name: str
    method: Averaging
    theta: Theta
    gamma: float
    alpha: float = 0.0
    rounds: int = 0

    def goal(self, clients: Quadratics) -> Array:
        """Where it should converge to; pooled data leave nothing to disagree about."""
        if self.method.needs.pooled:
            return clients.empirical_minimiser
        return clients.minimiser(self.gamma, self.theta, self.alpha)

    def spectrum(self, clients: Quadratics) -> Array:
        """Eigenvalues of what the server descends on, as its messages are scaled; ascending."""
        scale = self.gamma if self.method.form == "delta" else 1.0
        all_clients = Quadratics(clients.mean_hessian[None], clients.empirical_minimiser[None])
        seen = all_clients if self.method.needs.pooled else clients
        return np.asarray(scale * np.linalg.eigvalsh(seen.hessian(self.gamma, self.theta, self.alpha)))


def members(setting: QuadraticSetting, steps: int, tolerance: float) -> list[Member]:
    """The whole family here with full gradients: K = `steps`, gamma (L + alpha) = 0.6, less where Theta_K is sent."""
    clients = setting.clients
    gamma, small = 0.6 / (clients.L + ALPHA), 0.2 / (clients.L + ALPHA)
    every, listed = All(steps), as_theta(WEIGHTS)
    # With epsilon well above the last gradients, the steps of adaptive servers settle to a constant size.
    adam, yogi = Adam(1.5, beta1=0.1, epsilon=1.0), Yogi(1.5, beta1=0.1, epsilon=1.0)
    adagrad = Adagrad(1.5, epsilon=1.0)
    plain = [
        Member("fedavg", family.FedAvg(), every, gamma),
        Member("reptile", family.Reptile(server=Descent(0.8)), every, gamma),
        Member("fedprox", family.FedProx(alpha=ALPHA), every, gamma, ALPHA),
        Member("metaminibatchprox", family.MetaMinibatchProx(alpha=ALPHA), every, gamma, ALPHA),
        Member("fedavgm", family.FedAvgM(), every, gamma),
        Member("fedadam", family.FedAdam(server=adam), every, gamma),
        Member("fedyogi", family.FedYogi(server=yogi), every, gamma),
        Member("fedadagrad", family.FedAdagrad(server=adagrad), every, gamma),
        Member("fomaml", family.FOMAML(), Last(steps), small),
        Member("maml", family.MAML(), Last(2 * steps + 1), small / 2),
        Member("fedsgd", family.FedSGD(), All(1), 0.0),
        Member("centralised", baselines.Centralised(), every, gamma),
        Member("lookahead", baselines.Lookahead(server=Descent(0.8)), every, gamma),
        Member("minibatch-sgd", baselines.MinibatchSGD(), All(1), 0.0),
        Member("local-update", LocalUpdate(theta=WEIGHTS, steps=len(WEIGHTS)), listed, gamma),
    ]
    combined = [
        Member("local-update, proximal", LocalUpdate(theta=WEIGHTS, steps=4, alpha=ALPHA), listed, gamma, ALPHA),
        *[Member(f"local-update, {server} server", LocalUpdate(), every, gamma) for server in SERVERS[1:]],
    ]
    return [_finished(member, clients, steps, tolerance) for member in plain + combined]


def _finished(member: Member, clients: Quadratics, steps: int, tolerance: float) -> Member:
    """With gamma, K and a server that suits the curvature filled in, and the rounds theory says are enough."""
    steps = {Last: steps, All: member.theta.steps}.get(type(member.theta), len(WEIGHTS))
    method = replace(member.method, lr=member.gamma, steps=steps, epochs=None, batch=None)
    member = replace(member, method=method)
    values = member.spectrum(clients)
    kind = "none"
    if "server" in member.name or isinstance(method.server, HeavyBall):
        kind = "nesterov" if "nesterov" in member.name else "heavy-ball"
    if kind != "none" or method.form == "gradients":
        method = replace(method, server=server(kind, values[-1], values[0]))
    momentum, eta = getattr(method.server, "momentum", 0.0), method.server.lr
    if isinstance(method.server, Adam | Yogi | Adagrad):
        eta /= 1.5  # what the second moments may add to epsilon = 1 from a start at distance 1
    rounds = 8
    while np.abs(error_factors(kind, eta, momentum, values, rounds)).max() > tolerance / 20:
        rounds = round(1.1 * rounds)
    return replace(member, method=method, rounds=rounds)


def server(kind: str, L: float, mu: float) -> ServerOptimizer:
    """The server optimizer that attains the rate of Charles and Konečný's Table 2 on a spectrum in [mu, L]."""
    tuned = tune(kind, L, mu)
    if kind == "heavy-ball":
        return HeavyBall(float(tuned.eta), float(tuned.momentum))
    return Nesterov(float(tuned.eta), float(tuned.momentum)) if kind == "nesterov" else Descent(float(tuned.eta))
