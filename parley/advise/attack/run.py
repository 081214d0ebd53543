"""The attacks on a study: every defence and number of samples, on the same victims, from one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parley.advise.attack.exact import label_share
from parley.advise.attack.findings import BLIND, NONE, Findings, Row, Score
from parley.advise.attack.intercept import Scene, drawn, intercept
from parley.advise.attack.matching import Effort
from parley.advise.attack.membership import membership
from parley.advise.attack.prior import Prior
from parley.advise.attack.quality import check_installed, matching_order, quality
from parley.advise.attack.surfaces import attacked
from parley.advise.attack.trees import trees_said
from parley.advise.attack.verbatim import disclosed
from parley.algorithms.base.protocol import Algorithm
from parley.algorithms.cp_ntk_fl import CpNtkFL
from parley.channels import Channel
from parley.core.errors import InputError
from parley.core.key import Key
from parley.study.channel_names import named_channel
from parley.study.description import Study
from parley.study.train import train

DEFENCES = (
    "top-k(0.5)", "top-k(0.2)", "top-k(0.1)", "top-k(0.05)", "top-k(0.01)", "projection(0.1)", "projection(0.02)",
    "clip(0.1)", "clip(1.0) noise(0.01)", "clip(1.0) noise(0.1)",
)  # fmt: skip
"""What is tried unless told: channels, several of them with blanks between."""
BATCHES = (1, 4, 16)
Tell = Callable[[str, int, int], None]


def attack(
    study: Study,
    *,
    victims: int = 5,
    batches: Sequence[int] = BATCHES,
    defences: Sequence[str] | None = None,
    after: int = 0,
    effort: Effort | None = None,
    seed: int | None = None,
    tell: Tell | None = None,
) -> Findings:
    """What a server that follows the study to the letter, and is curious, can rebuild of its clients' samples.

    Each of `victims` random clients is asked once, with so many of its samples as `batches` says and the study's
    channels; then with the smallest batch and each of `defences` (channels by name) after them. `after`: rounds of the
    study that are trained first.
    """
    if victims < 1 or not batches or min(batches) < 1 or after < 0:
        raise InputError("an attack needs at least one victim, with at least one sample, and no negative rounds.")
    check_installed()
    scene = Scene.of(study)
    members: list[float] = []
    if after:
        run = train(replace(study, rounds=after))
        scene = replace(scene, state=run.state)
        if not scene.algorithm.personal:
            predict = scene.algorithm.predictor(scene.task, scene.algorithm.model(scene.task, run.state))
            members, _ = membership(scene.task, predict, scene.federation, max(victims, 10), Key(study.seed))
    key = Key(study.seed if seed is None else seed).fold("attack")
    few = min(batches)
    plan: list[tuple[str, int, list[Channel]]] = [(NONE, n, []) for n in sorted(set(batches))]
    refused: dict[str, list[str]] = {}
    for text in DEFENCES if defences is None else defences:
        stages = [named_channel(name) for name in text.replace(") ", ")\0").split("\0")]
        try:
            scene.channels(stages)
            plan.append((text, few, stages))
        except InputError as error:
            refused.setdefault(str(error).partition(": ")[2] or str(error), []).append(text)
    notes = [f"left out: {', '.join(texts)}. {scene.algorithm.title}: {why}" for why, texts in refused.items()]
    rows, said = [], dict[str, None]()
    for number, (name, samples, stages) in enumerate(plan):
        if tell is not None:
            tell("defences", number, len(plan))
        row, sentences = _row(scene, name, samples, stages, victims, effort or Effort(), key)
        rows.append(row)
        said |= dict.fromkeys(sentences if name == NONE else ())
    said |= dict.fromkeys(_about_rows(scene.algorithm))
    if all(not set(row.scores) - {BLIND} for row in rows) and not said:
        notes.append(f"nothing that {scene.algorithm.title} sends is of a kind that these attacks know.")
    pictures = len(scene.task.info.shape) in (2, 3)
    return Findings(
        study.title, scene.algorithm.title, tuple(rows), pictures, study.seed, after, tuple(said), tuple(members),
        tuple(notes),
    )  # fmt: skip


def _about_rows(method: Algorithm) -> list[str]:
    """Of rows that a shuffler forwards, which no attack here takes apart."""
    if not isinstance(method, CpNtkFL):
        return []
    what = "labels, and Jacobians that show" + (" part of" if method.upload == "top-k" else "")
    if not method.projection or method.reveal:
        return [f"the server receives rows without owners: {what} every sample's input."]
    return [
        f"the server receives rows without owners: {what} every sample's projected input. With the seed, which every "
        "client has, they tell of the inputs what the projection keeps; these attacks do not have it."
    ]


def _row(
    scene: Scene, name: str, samples: int, stages: list[Channel], victims: int, effort: Effort, key: Key
) -> tuple[Row, list[str]]:
    scores: dict[str, list[Score]] = {}
    first: dict[str, Tensor] = {}
    originals, said, known = None, list[str](), Prior.of(scene.federation)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that every machine with as many victims finds the same
    try:
        for number in range(victims):
            own = key.fold("victim", number)
            victim = drawn(scene.federation, samples, own.fold("samples", samples))
            seen = intercept(scene, victim, own, stages)
            decoy = drawn(scene.federation, samples, own.fold("decoy", samples))
            if number == 0:
                said += [one.sentence() for one in disclosed(seen.exchanges, victim, decoy)]
                said += trees_said(seen.exchanges, victim, decoy, scene.task.loss, scene.task.info.outputs)
            found = attacked(scene, seen, samples, known, effort, own) | {BLIND: known.blind(samples)}
            for attack, rebuilt in found.items():
                order = matching_order(victim.x, x := rebuilt.x.clamp(*known.span))
                x, targets = x[order], rebuilt.targets[order]
                measured = quality(victim.x, x, known.width)
                share = label_share(victim.y, targets, known.classes)
                scores.setdefault(attack, []).append(Score(measured.ssim, measured.psnr, share))
                if number == 0:
                    first[attack], originals = x, victim.x
    finally:
        torch.set_num_threads(before)
    return Row(name, samples, {k: tuple(v) for k, v in scores.items()}, originals, first), said
