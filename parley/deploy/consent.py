"""Whether a node may answer: what its owner said of a study, else what the policy says in advance.

No is the default. A rejected study stays rejected whatever the policy says; limits that protect few samples and small
federations hold whatever was approved. An approval, by the owner or the policy, is for one run: the first one that the
server invites to under it. Values are judged, not their names: what local noise costs is computed here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import torch

from parley import __version__
from parley.algorithms import algorithms
from parley.algorithms.exchange import disclosed
from parley.channels import Channel, channels
from parley.core.errors import InputError, ParleyError
from parley.core.text import shown
from parley.data import ClientData, Federation
from parley.data.sources import InMemory
from parley.deploy import keys
from parley.deploy.node_data import OwnData
from parley.deploy.node_folder import NodeFolder, now
from parley.deploy.proposal import Proposal
from parley.deploy.settings import PolicySettings
from parley.engine.settings import Sampling
from parley.models import models
from parley.runtimes.protocol import Job
from parley.study.channel_names import named_channel, stages
from parley.study.study import Study
from parley.study.train import client_job

_LEAST_NOISE = 0.01
"""The noise multiplier below which nothing is hidden, and no accountant can say how little."""
_LONGEST_DAYS = 1e6
BY_POLICY = "approved by its policy"
_ANEW = "another run needs a new approval of its owner"


@dataclass(frozen=True)
class Verdict:
    """May it answer, and why or why not (the end of a sentence about the node)."""

    yes: bool
    why: str
    pending: bool = False
    """Nobody has decided yet."""


def version_problem(parley: str) -> str | None:
    """Why a study of another version cannot be answered; None if it can."""
    if parley == __version__:
        return None
    return f"has Parley {__version__}, but the server has {parley[:40]}; install the same version on both."


def verdict(folder: NodeFolder, proposal: Proposal) -> Verdict:
    """Decide about a study as things stand now."""
    wrong = version_problem(proposal.parley)
    if wrong is not None:
        return Verdict(False, wrong)
    decision = folder.decision(proposal.hash)
    if decision is not None and decision["decision"] == "rejected":
        return Verdict(False, f"its owner rejected study {proposal.hash[:12]}.")
    disclosed = discloses(folder, proposal) if decision is not None else ""
    if decision is not None and decision["decision"] == "approved":
        if disclosed and not decision.get("disclose"):
            return Verdict(
                False, f"its owner approved study {proposal.hash[:12]}, but not that it discloses {disclosed}."
            )
        return Verdict(True, "approved by its owner")
    exceeded = policy_obstacle(folder.policy, folder, proposal)
    if exceeded is None:
        return Verdict(True, BY_POLICY)
    return Verdict(
        False,
        f"its owner has not approved study {proposal.hash[:12]} (by policy it may not: {exceeded}).",
        pending=True,
    )


def discloses(folder: NodeFolder, proposal: Proposal) -> str:
    """What of the samples the method discloses, by the code installed at this node."""
    try:
        whole = proposal.rebuilt(folder.modules).algorithm
    except ParleyError:
        return "what is unknown, because the method is not installed here"
    parts = disclosed(whole.exchanges())
    return f"samples' {' and '.join(parts)}" if parts else ""


def shows(proposal: Proposal, modules: Path, data: OwnData) -> str:
    """What of these samples the study tells though few have it, as the end of a sentence; nothing if that is none."""
    asking = [each.rare for each in proposal.rebuilt(modules).algorithm.exchanges() if each.rare is not None]
    if not asking:
        return ""
    job = _own_job(proposal, modules, data)
    return "; ".join(dict.fromkeys(filter(None, (rare(job.task, job.federation.client("own")) for rare in asking))))


def used(proposal: Proposal, modules: Path, data: OwnData) -> OwnData:
    """The samples that the study uses: of a regression, those with all covariates."""
    asking = [each.rows for each in proposal.rebuilt(modules).algorithm.exchanges() if each.rows is not None]
    if not asking:
        return data
    job = _own_job(proposal, modules, data)
    kept = torch.stack([rows(job.task, job.federation.client("own")) for rows in asking]).any(0)
    return replace(data, train=ClientData(data.train.x[kept], data.train.y[kept]))


def _own_job(proposal: Proposal, modules: Path, data: OwnData) -> Job:
    """What the study's functions say of this node's samples alone."""
    study = replace(proposal.rebuilt(modules), device="cpu")
    return client_job(study, Federation(data.info, ("own",), InMemory((data.train,))), 1, bytes(16))


def policy_obstacle(policy: PolicySettings, folder: NodeFolder, proposal: Proposal) -> str | None:
    """What in a study the policy does not allow in advance; None if it allows all of it."""
    if policy.rounds == 0:
        return "it approves nothing in advance"
    if proposal.modules:
        return "it approves no code that is not Parley's"
    for what, name, allowed, known in (
        ("algorithm", proposal.algorithm, policy.algorithms, algorithms),
        ("model", proposal.model, policy.models, models),
    ):
        if name is not None and name not in allowed and not ("*" in allowed and name in known):
            return f"the {what} '{shown(name, 100)}'"
    if disclosed := discloses(folder, proposal):
        return f"'{shown(proposal.algorithm, 100)}' discloses {disclosed}"
    if (least := _floor_of(folder, proposal)) is not None and least < policy.minimum_floor:
        return f"statistics with a floor of {least} where it asks for {policy.minimum_floor}"
    used = proposal.channels
    if "*" not in policy.channels:
        for name in used:
            if name not in policy.channels:
                return f"the channel '{shown(name, 100)}'"
    if policy.peers and not proposal.roster:
        return "a study without a roster to compare its peers with"
    if policy.peers and known_nodes(folder, proposal) < len(proposal.roster):
        return "nodes whose keys its peers do not name"
    if proposal.rounds > policy.rounds:
        return f"{proposal.rounds} rounds where it allows {policy.rounds}"
    study = proposal.rebuilt(folder.modules)
    for text in policy.required_channels:
        if (lacking := _channel_obstacle(text, study)) is not None:
            return lacking
    return _privacy_obstacle(policy, study, proposal) or _evaluation_obstacle(policy, proposal)


def _channel_obstacle(text: str, study: Study) -> str | None:
    """Why the study has not the channel that the policy asks for, at least as strict as that.

    A clipping norm or noise of any size hides nothing, so a policy says of which size; of secure sums it may say how
    many clients, and which share of them, a sum needs.
    """
    try:
        wanted = named_channel(text)
    except InputError:
        if text in _SIZED:
            return f"required_channels names '{text}' without a value, which any value meets: write {_SIZED[text]}"
        raise
    kind = channels.name_of(type(wanted))
    for stage in stages(study.channels):
        if type(stage) is not type(wanted):
            continue
        if all(_as_strict(stage, wanted, name) for name in ("bound", "deviation", "threshold", "least")):
            return None
        return f"the channel '{kind}' is less strict than {text}, which it asks for"
    return f"it asks for the channel '{kind}'"


_SIZED = {"clip": "clip(1.0) for at most that", "noise": "noise(0.5) for at least that"}


def _as_strict(stage: Channel, wanted: Channel, name: str) -> bool:
    """A smaller clipping norm is stricter; of all others, a larger value."""
    least = getattr(wanted, name, None)
    if least is None:
        return True
    value = getattr(stage, name)
    return bool(value <= least if name == "bound" else value >= least)


def _floor_of(folder: NodeFolder, proposal: Proposal) -> int | None:
    """The fewest samples behind anything that is told, of a method that tells statistics."""
    exchanges = proposal.rebuilt(folder.modules).algorithm.exchanges()
    return min((each.floor for each in exchanges if each.floor is not None), default=None)


def _privacy_obstacle(policy: PolicySettings, study: Study, proposal: Proposal) -> str | None:
    private = study.privacy
    if policy.local_noise and (private is None or private.noise != "local"):
        return "it asks for noise that is added here"
    if private is not None and private.noise == "local" and private.delta > policy.delta:
        return f"delta {private.delta:g} where it allows {policy.delta:g}"
    if policy.epsilon is None:
        return None
    if private is None:
        return f"it asks for [privacy] with an epsilon of at most {policy.epsilon:g}"
    if private.delta > policy.delta:
        return f"delta {private.delta:g} where it allows {policy.delta:g}"
    spent = epsilon(study)
    if not spent <= policy.epsilon:
        return f"epsilon {spent:.4g} where it allows {policy.epsilon:g}"
    return None


def epsilon(study: Study) -> float:
    """What the rounds of a private study cost, computed from its noise, whatever it says that it spends.

    Of local noise, which is this node's own: everything that the method may ask for, in all rounds. Of central noise,
    for which the server is trusted: without any help of cohorts, whose share of the federation nobody here knows,
    where the study says how much noise is added; where it leaves that open, the epsilon that it asks for.
    """
    from parley.privacy import privacy_plan

    private = study.privacy
    assert private is not None
    if private.noise == "central" and private.noise_multiplier is None:
        assert private.epsilon is not None
        return private.epsilon
    plan = privacy_plan(private, Sampling(), 1, study.rounds)
    if plan.multiplier < _LEAST_NOISE:
        return math.inf
    releases = study.rounds
    if private.noise == "local":
        sending = [each for each in study.algorithm.exchanges() if each.reads != "nothing"]
        releases = sum(each.times * _rounds(each.rounds, study.rounds) for each in sending)
    return plan.epsilon(releases)


def _rounds(declared: tuple[int, int | None], rounds: int) -> int:
    """In how many rounds of a study something is asked."""
    first, last = declared
    return max(0, (rounds if last is None else min(last, rounds)) - first + 1)


def _evaluation_obstacle(policy: PolicySettings, proposal: Proposal) -> str | None:
    if not proposal.evaluates:
        return None
    if not policy.evaluation:
        return "evaluation on held-out samples"
    if dict(proposal.study.get("evaluate") or {}).get("pooled") and not policy.pooled:
        return (
            "counts of held-out samples by score and class (evaluate.pooled), which policy.toml does not allow (pooled)"
        )
    return None


def engage(folder: NodeFolder, proposal: Proposal, run: str, decided: Verdict) -> str | None:
    """Take part in a run, for which an approval is spent; None, or why not, as the end of a sentence about the node.

    The first run that is invited to under an approval is the run of it, for ever. One that goes on for more rounds,
    approved as a study of its own, keeps its name, and with it what was asked and answered so far.
    """
    with folder.alone():
        if takes_part(folder, proposal.hash, run):
            return _gone(folder, proposal.hash, run)
        runs, decision = folder.runs_of(proposal.hash), folder.decision(proposal.hash)
        if decision is not None and _expired(folder, decision["when"]):
            return f"approved study {proposal.hash[:12]} {_days(folder)} ago or more; its owner has to decide again."
        allowed = 1 if decision is None else int(decision.get("runs", 1))
        if len(runs) >= allowed:
            return f"has taken part in a run of study {proposal.hash[:12]} already; {_ANEW}."
        for other in folder.studies():
            if other != proposal.hash and takes_part(folder, other, run):
                wrong = _prolonged(folder.proposal(other), proposal) or _gone(folder, other, run)
                if wrong is not None:
                    return wrong
        private = proposal.study.get("privacy") is not None
        spent = epsilon(proposal.rebuilt(folder.modules)) if private else None
        by_policy = decided.why == BY_POLICY
        if by_policy and (over := _beyond(folder, spent)) is not None:
            return over
        facts = {"run": run, "by": "policy" if by_policy else "owner", "epsilon": spent, "when": now()}
        folder.keep_runs(proposal.hash, [*runs, facts])
    return None


def enrolled(folder: NodeFolder, hash: str, run: str, near: str = "") -> None:
    """Note that the node keeps samples and a ledger of the run from now on; `near`: what its owner is warned of."""
    with folder.alone():
        runs = folder.runs_of(hash)
        for entry in runs:
            if entry["run"] == run:
                before = str(entry.get("near", ""))
                entry |= {"enrolled": True, "near": before if near in before else f"{before} {near}".lstrip()}
        folder.keep_runs(hash, runs)


def takes_part(folder: NodeFolder, hash: str, run: str) -> bool:
    return any(entry["run"] == run for entry in folder.runs_of(hash))


def ended(folder: NodeFolder, hash: str, run: str) -> str | None:
    """Why a run that the node takes part in is answered no more, as the end of a sentence about it; None if it is."""
    when = next(entry["when"] for entry in folder.runs_of(hash) if entry["run"] == run)
    if not _expired(folder, when):
        return None
    return f"began this run {_days(folder)} ago or more; {_ANEW}."


def _expired(folder: NodeFolder, when: str) -> bool:
    age = datetime.now(UTC) - datetime.fromisoformat(when)
    return age > timedelta(days=min(folder.policy.approval_days, _LONGEST_DAYS))


def _days(folder: NodeFolder) -> str:
    return f"{folder.policy.approval_days:g} days"


def _gone(folder: NodeFolder, hash: str, run: str) -> str | None:
    """A ledger that was deleted is never begun again."""
    known = any(entry["run"] == run and entry.get("enrolled") for entry in folder.runs_of(hash))
    if known and not (folder.run(run) / "node.json").exists():
        return f"keeps nothing of this run any more; {_ANEW}."
    return None


def _prolonged(before: Proposal, after: Proposal) -> str | None:
    """Why a run cannot go on under another study; None if it is the same but for the number of rounds."""
    if before.lineage != after.lineage:
        return f"knows this run by another study; {_ANEW}."
    private = dict(after.study.get("privacy") or {})
    if private and private.get("noise_multiplier") is None:
        return (
            "has answered with the noise of fewer rounds, so epsilon would not hold for more: a private study that "
            "goes on needs a noise_multiplier."
        )
    return None


def _beyond(folder: NodeFolder, spent: float | None) -> str | None:
    """Which of the policy's limits for all studies together this one would exceed."""
    policy = folder.policy
    before: list[dict[str, Any]] = [
        entry for hash in folder.studies() for entry in folder.runs_of(hash) if entry["by"] == "policy"
    ]
    if len(before) >= policy.runs:
        return f"approves {policy.runs} runs in advance in all, and these are spent; {_ANEW}."
    total = math.fsum(entry["epsilon"] or 0.0 for entry in (*before, {"epsilon": spent}))
    if policy.total_epsilon is not None and not total <= policy.total_epsilon:
        return f"approves an epsilon of {policy.total_epsilon:g} in all, and this makes it {total:.4g}; {_ANEW}."
    return None


def floor(policy: PolicySettings, samples: int, nodes: int | None) -> str | None:
    """Why nothing is answered however well approved, as the end of a sentence about the node; None if nothing speaks
    against it."""
    if samples < policy.minimum_samples:
        return f"has fewer samples than the {policy.minimum_samples} below which it answers nothing."
    if nodes is not None and nodes < policy.minimum_nodes:
        return f"answers only in federations of at least {policy.minimum_nodes} nodes; this one has {nodes}."
    return None


def known_nodes(folder: NodeFolder, proposal: Proposal) -> int:
    """How many nodes a study has by its roster; where the policy names the keys of others, only those count."""
    peers, this = folder.policy.peers, folder.settings.name
    known = [name for name, key in proposal.roster.items() if name == this or keys.fingerprint(key) in peers]
    return len(known if peers else proposal.roster)


def check_decidable(folder: NodeFolder, proposal: Proposal, disclose: bool) -> None:
    """Refuse an approval that would not be what its owner thinks."""
    wrong = version_problem(proposal.parley)
    if wrong is not None:
        raise InputError(f"study {proposal.hash[:12]} cannot be answered: this node {wrong}")
    handed_out = discloses(folder, proposal)
    if handed_out and not disclose:
        raise InputError(f"study {proposal.hash[:12]} discloses {handed_out}; approve that explicitly with --disclose.")
    proposal.rebuilt(folder.modules)  # names modules that are missing or other ones
