"""Which attacks what was received is open to: each surface looks for its kind of reply and attacks it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from parley.advise.attack.evidence import Jacobian, double, gradient_of
from parley.advise.attack.intercept import Intercepted, Scene
from parley.advise.attack.matching import Effort, Rebuilt, cosine, dlg
from parley.advise.attack.prior import Prior
from parley.algorithms.base.least_squares import SampleSpace, descend
from parley.algorithms.base.uploads import received
from parley.algorithms.kernel import OnPoints
from parley.algorithms.ntk_fl import NtkFL
from parley.core.key import Key
from parley.core.threads import one_thread
from parley.models.feature_model import points_of


def attacked(
    scene: Scene, seen: Intercepted, samples: int, prior: Prior, effort: Effort, key: Key
) -> dict[str, Rebuilt]:
    """Every attack's best guess, by its name; empty where nothing that was received is of a known kind."""
    found: dict[str, Rebuilt] = {}
    for surface in (on_gradient, on_jacobian, on_points):
        found |= surface(scene, seen, samples, prior, effort, key)
    return found


def on_gradient(
    scene: Scene, seen: Intercepted, samples: int, prior: Prior, effort: Effort, key: Key
) -> dict[str, Rebuilt]:
    """An update of the model's form: division where the first layer is dense, then the two searches."""
    gradient = gradient_of(scene, seen, samples)
    if gradient is None:
        return {}
    target = gradient.target(prior.span)
    found = {}
    exact = gradient.exact(prior.mean)
    if exact is not None:
        labels = target.labels if target.labels is not None else prior.labels(samples)
        found["division"] = Rebuilt(exact, labels, 0.0)
    return found | {"dlg": dlg(target, effort, key.fold("dlg")), "cosine": cosine(target, effort, key.fold("cosine"))}


def on_rows(evidence: Jacobian, prior: Prior, effort: Effort, key: Key) -> dict[str, Rebuilt]:
    """Sample-wise Jacobians, each attacked by itself: labels come with them.

    Deep leakage as published takes the zeros of a sparse Jacobian for its values; "sent only" compares what was sent.
    """
    found: dict[str, Rebuilt] = {}
    exact = evidence.exact(prior.mean)
    if exact is not None:
        found["division"] = Rebuilt(exact, evidence.classes, 0.0)
    sparse = any(bool((value == 0).all((0, 1)).any()) for value in evidence.rows.values())
    for name, sent_only in (("dlg", False), ("dlg, sent only", True)) if sparse else (("dlg", False),):
        each = [
            dlg(evidence.target(sample, prior.span, sent_only), effort, key.fold(name, sample))
            for sample in range(len(evidence))
        ]
        found[name] = Rebuilt(
            torch.cat([one.x for one in each]), evidence.classes, sum(one.loss for one in each) / len(each)
        )
    return found


def on_jacobian(
    scene: Scene, seen: Intercepted, samples: int, prior: Prior, effort: Effort, key: Key
) -> dict[str, Rebuilt]:
    """What NTK-FL sends, in whichever form: written out, then attacked row by row."""
    heard, method = seen.reply(), scene.algorithm
    if heard is None or not isinstance(method, NtkFL) or "samples" not in heard.received:
        return {}
    own = heard.received["samples"]
    if own["labels"].is_floating_point():
        return {}
    rows = double(received(heard.received, scene.task).rows())
    evidence = Jacobian(
        scene.task, double(heard.sent["model"]), double(heard.sent.get("buffers")),
        {name: rows[name] for name in heard.sent["model"]}, own["labels"],
    )  # fmt: skip
    return on_rows(evidence, prior, effort, key)


def on_points(
    scene: Scene, seen: Intercepted, samples: int, prior: Prior, effort: Effort, key: Key
) -> dict[str, Rebuilt]:
    """Kernel methods send their inputs, and coefficients that are a known linear map of the residuals y - f.

    c = A (y - f), where A follows from the points and the method's settings, and f is the server's own function.
    """
    heard, method = seen.reply("points"), scene.algorithm
    if heard is None or not isinstance(method, OnPoints):
        return {}
    points = heard.received.tensor("points")
    x = points.reshape(len(points), *scene.task.info.shape)
    targets = torch.full((len(points), scene.task.info.outputs), float("nan"))
    if (answer := seen.reply()) is not None:
        targets = kernel_targets(method, points, _start(scene, x), answer.received.tensor("coefficients"))
    return {"reading": Rebuilt(x.double(), targets, 0.0)}


def kernel_targets(method: OnPoints, points: Tensor, f: Tensor, coefficients: Tensor) -> Tensor:
    """y [n, outputs] from the points, the values of the function there and the coefficients that were sent."""
    n = len(points)
    with one_thread():
        space = SampleSpace.of(method.kernel, points_of(points), np.eye(n), np.zeros((n, n)), method.batch)
        descend(space, method.method, n)
        residual = np.linalg.lstsq(space.coefficients, coefficients.numpy(), rcond=None)[0]
    return f + torch.from_numpy(residual)


def _start(scene: Scene, x: Tensor) -> Tensor:
    """f at the points before the first round."""
    start = scene.task.predictor(scene.task.initial(), scene.task.initial_buffers())
    return start(x).detach().double().reshape(len(x), -1)
