"""Which attacks what was received is open to: each surface looks for its kind of reply and attacks it."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.kernel.exact import OnPoints
from parley.algorithms.kernel.least_squares import SampleSpace, descend
from parley.algorithms.ntk.uploads import received
from parley.algorithms.protocol import Algorithm
from parley.attack.evidence import Jacobian, double, gradient_of
from parley.attack.intercept import Intercepted, Prepared
from parley.attack.matching import Effort, Rebuilt, cosine, dlg
from parley.attack.prior import Prior
from parley.core.key import Key
from parley.core.threads import one_thread
from parley.models.feature_model import points_of


def attacked(
    prepared: Prepared, seen: Intercepted, samples: int, prior: Prior, effort: Effort, key: Key
) -> dict[str, Rebuilt]:
    """Every attack's best guess, by its name; empty where nothing that was received is of a known kind."""
    rebuilt: dict[str, Rebuilt] = {}
    for surface in (on_gradient, on_jacobian, on_points):
        rebuilt |= surface(prepared, seen, samples, prior, effort, key)
    return rebuilt


def on_gradient(
    prepared: Prepared, seen: Intercepted, samples: int, prior: Prior, effort: Effort, key: Key
) -> dict[str, Rebuilt]:
    """An update of the model's form: division where the first layer is dense, then the two searches."""
    gradient = gradient_of(prepared, seen, samples)
    if gradient is None:
        return {}
    target = gradient.target(prior.span)
    rebuilt = {}
    exact = gradient.exact(prior.mean)
    if exact is not None:
        labels = target.labels if target.labels is not None else prior.labels(samples)
        rebuilt["division"] = Rebuilt(exact, labels, 0.0)
    return rebuilt | {"dlg": dlg(target, effort, key.fold("dlg")), "cosine": cosine(target, effort, key.fold("cosine"))}


def on_rows(evidence: Jacobian, prior: Prior, effort: Effort, key: Key) -> dict[str, Rebuilt]:
    """Sample-wise Jacobians, each attacked by itself: labels come with them.

    Deep leakage as published takes the zeros of a sparse Jacobian for its values; "sent only" compares what was sent.
    """
    rebuilt: dict[str, Rebuilt] = {}
    exact = evidence.exact(prior.mean)
    if exact is not None:
        rebuilt["division"] = Rebuilt(exact, evidence.classes, 0.0)
    sparse = any(bool((value == 0).all((0, 1)).any()) for value in evidence.rows.values())
    for name, sent_only in (("dlg", False), ("dlg, sent only", True)) if sparse else (("dlg", False),):
        each = [
            dlg(evidence.target(sample, prior.span, sent_only), effort, key.fold(name, sample))
            for sample in range(len(evidence))
        ]
        rebuilt[name] = Rebuilt(
            torch.cat([part.x for part in each]), evidence.classes, sum(part.loss for part in each) / len(each)
        )
    return rebuilt


def on_jacobian(
    prepared: Prepared, seen: Intercepted, samples: int, prior: Prior, effort: Effort, key: Key
) -> dict[str, Rebuilt]:
    """What NTK-FL sends, in whichever form: written out, then attacked row by row."""
    answer = seen.reply()
    if answer is None or "samples" not in answer.received:
        return {}
    given_samples = answer.received["samples"]
    if "outputs" not in given_samples or given_samples["labels"].is_floating_point():
        return {}
    rows = double(received(answer.received, prepared.task).rows())
    evidence = Jacobian(
        prepared.task,
        double(answer.sent["model"]),
        double(answer.sent.get("buffers")),
        {name: rows[name] for name in answer.sent["model"]},
        given_samples["labels"],
    )
    return on_rows(evidence, prior, effort, key)


def on_points(
    prepared: Prepared, seen: Intercepted, samples: int, prior: Prior, effort: Effort, key: Key
) -> dict[str, Rebuilt]:
    """Kernel methods send their inputs, and coefficients that are a known linear map of the residuals y - f.

    c = A (y - f), where A follows from the points and the method's settings, and f is the server's own function.
    """
    asked = seen.reply("points")
    if asked is None:
        return {}
    points = asked.received.tensor("points")
    x = points.reshape(len(points), *prepared.task.info.shape)
    targets = torch.full((len(points), prepared.task.info.outputs), float("nan"))
    if (answer := seen.reply()) is not None:
        targets = targets_behind(
            prepared.algorithm, points, _start(prepared, x), answer.received.tensor("coefficients")
        )
    return {"reading": Rebuilt(x.double(), targets, 0.0)}


@singledispatch
def targets_behind(method: Algorithm, points: Tensor, f: Tensor, coefficients: Tensor) -> Tensor:
    """y [n, outputs] from the points, the values of the function there and the coefficients that were sent."""
    return torch.full_like(f, torch.nan)


@targets_behind.register
def kernel_targets(method: OnPoints, points: Tensor, f: Tensor, coefficients: Tensor) -> Tensor:
    """Those of kernel methods: the coefficients are a linear map of the residuals."""
    n = len(points)
    with one_thread():
        space = SampleSpace.of(method.kernel, points_of(points), np.eye(n), np.zeros((n, n)), method.batch)
        descend(space, method.method, n)
        residual = np.linalg.lstsq(space.coefficients, coefficients.numpy(), rcond=None)[0]
    return f + torch.from_numpy(residual)


def _start(prepared: Prepared, x: Tensor) -> Tensor:
    """f at the points before the first round."""
    start = prepared.task.predictor(prepared.task.initial(), prepared.task.initial_buffers())
    return start(x).detach().double().reshape(len(x), -1)
