"""The attacks on a study: every defence and number of samples, on the same victims, from one seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from parley.algorithms.exchange import disclosed as disclosed_parts
from parley.algorithms.parties import SHUFFLER
from parley.algorithms.protocol import Algorithm
from parley.attack.exact import label_share
from parley.attack.findings import BLIND, NONE, Findings, Row, Score
from parley.attack.intercept import Prepared, drawn, intercept
from parley.attack.matching import Effort
from parley.attack.membership import membership
from parley.attack.prior import Prior
from parley.attack.quality import check_installed, matching_order, quality
from parley.attack.surfaces import attacked
from parley.attack.trees import tree_evidence
from parley.attack.verbatim import disclosed
from parley.channels import Channel
from parley.core.errors import InputError
from parley.core.key import Key
from parley.study.channel_names import named_channel
from parley.study.study import Study
from parley.study.train import train

DEFENCES = (
    "top-k(0.5)",
    "top-k(0.2)",
    "top-k(0.1)",
    "top-k(0.05)",
    "top-k(0.01)",
    "projection(0.1)",
    "projection(0.02)",
    "clip(0.1)",
    "clip(1.0) noise(0.01)",
    "clip(1.0) noise(0.1)",
)
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
    prepared = Prepared.of(study)
    members: list[float] = []
    if after:
        run = train(replace(study, rounds=after))
        prepared = replace(prepared, state=run.state)
        if not run.learned.personal:
            members, _ = membership(
                prepared.task, run.predictor(), prepared.federation, max(victims, 10), Key(study.seed)
            )
    key = Key(study.seed if seed is None else seed).fold("attack")
    few = min(batches)
    plan: list[tuple[str, int, list[Channel]]] = [(NONE, n, []) for n in sorted(set(batches))]
    refused: dict[str, list[str]] = {}
    for text in DEFENCES if defences is None else defences:
        stages = [named_channel(name) for name in text.replace(") ", ")\0").split("\0")]
        try:
            prepared.channels(stages)
            plan.append((text, few, stages))
        except InputError as error:
            refused.setdefault(str(error).partition(": ")[2] or str(error), []).append(text)
    notes = [f"left out: {', '.join(texts)}. {prepared.algorithm.title}: {why}" for why, texts in refused.items()]
    rows, all_sentences = [], dict[str, None]()
    for number, (name, samples, stages) in enumerate(plan):
        if tell is not None:
            tell("defences", number, len(plan))
        row, sentences = _row(prepared, name, samples, stages, victims, effort or Effort(), key)
        rows.append(row)
        all_sentences |= dict.fromkeys(sentences if name == NONE else ())
    all_sentences |= dict.fromkeys(_about_rows(prepared.algorithm))
    if all(not set(row.scores) - {BLIND} for row in rows) and not all_sentences:
        notes.append(f"nothing that {prepared.algorithm.title} sends is of a kind that these attacks know.")
    pictures = len(prepared.task.info.shape) in (2, 3)
    return Findings(
        study.title,
        prepared.algorithm.title,
        tuple(rows),
        pictures,
        study.seed,
        after,
        tuple(all_sentences),
        tuple(members),
        tuple(notes),
    )


def _about_rows(method: Algorithm) -> list[str]:
    """Of rows that a shuffler forwards, which no attack here takes apart."""
    exchanges = method.exchanges()
    if not any(each.asks == SHUFFLER for each in exchanges):
        return []
    what = "the server receives rows without owners: labels, and Jacobians that show"
    if "inputs" in disclosed_parts(exchanges):
        return [f"{what} every sample's input, or part of it."]
    return [
        f"{what} every sample's projected input, or part of it. With the seed, which every client has, they tell of "
        "the inputs what the projection keeps; these attacks do not have it."
    ]


def _row(
    prepared: Prepared, name: str, samples: int, stages: list[Channel], victims: int, effort: Effort, key: Key
) -> tuple[Row, list[str]]:
    scores: dict[str, list[Score]] = {}
    first: dict[str, Tensor] = {}
    originals, sentences, known = None, list[str](), Prior.of(prepared.federation)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # so that every machine with as many victims finds the same
    try:
        for number in range(victims):
            victim_key = key.fold("victim", number)
            victim = drawn(prepared.federation, samples, victim_key.fold("samples", samples))
            seen = intercept(prepared, victim, victim_key, stages)
            decoy = drawn(prepared.federation, samples, victim_key.fold("decoy", samples))
            if number == 0:
                sentences += [disclosure.sentence() for disclosure in disclosed(seen.exchanges, victim, decoy)]
                sentences += tree_evidence(
                    seen.exchanges, victim, decoy, prepared.task.loss, prepared.task.info.outputs
                )
            rebuilt_by_attack = attacked(prepared, seen, samples, known, effort, victim_key) | {
                BLIND: known.blind(samples)
            }
            for attack, rebuilt in rebuilt_by_attack.items():
                order = matching_order(victim.x, x := rebuilt.x.clamp(*known.span))
                x, targets = x[order], rebuilt.targets[order]
                measured = quality(victim.x, x, known.width)
                share = label_share(victim.y, targets, known.classes)
                scores.setdefault(attack, []).append(Score(measured.ssim, measured.psnr, share))
                if number == 0:
                    first[attack], originals = x, victim.x
    finally:
        torch.set_num_threads(before)
    return Row(name, samples, {k: tuple(v) for k, v in scores.items()}, originals, first), sentences
