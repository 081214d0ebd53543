"""Whether a node may answer: what its owner said of a study, else what the policy says in advance.

No is the default. A rejected study stays rejected whatever the policy says; limits that protect few samples and small
federations hold whatever was approved.
"""

from __future__ import annotations

from dataclasses import dataclass

from parley import __version__
from parley.algorithms import algorithms
from parley.algorithms.base.exchange import disclosed
from parley.core.errors import InputError, ParleyError
from parley.deploy.node_folder import NodeFolder
from parley.deploy.proposal import Proposal
from parley.deploy.settings import PolicySettings
from parley.models import models


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
    said = folder.decision(proposal.hash)
    if said is not None and said["decision"] == "rejected":
        return Verdict(False, f"its owner rejected study {proposal.hash[:12]}.")
    disclosed = discloses(folder, proposal) if said is not None else ""
    if said is not None and said["decision"] == "approved":
        if disclosed and not said.get("disclose"):
            return Verdict(
                False, f"its owner approved study {proposal.hash[:12]}, but not that it hands out {disclosed}."
            )
        return Verdict(True, "approved by its owner")
    exceeded = policy_obstacle(folder.policy, folder, proposal)
    if exceeded is None:
        return Verdict(True, "approved by its policy")
    return Verdict(
        False,
        f"its owner has not approved study {proposal.hash[:12]} (by policy it may not: {exceeded}).",
        pending=True,
    )


def discloses(folder: NodeFolder, proposal: Proposal) -> str:
    """What of the samples the method hands out, as the code installed at this node says, not the server."""
    try:
        whole = proposal.rebuilt(folder.modules).algorithm
    except ParleyError:
        return "what cannot be told, because the method is not installed here"
    parts = disclosed(whole.exchanges())
    return f"samples' {' and '.join(parts)}" if parts else ""


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
            return f"the {what} '{name}'"
    if disclosed := discloses(folder, proposal):
        return f"'{proposal.algorithm}' hands out {disclosed}"
    if (least := _floor_of(folder, proposal)) is not None and least < policy.minimum_floor:
        return f"statistics with a floor of {least} where it asks for {policy.minimum_floor}"
    used = proposal.channels
    if "*" not in policy.channels:
        for name in used:
            if name not in policy.channels:
                return f"the channel '{name}'"
    for name in policy.required_channels:
        if name not in used:
            return f"it asks for the channel '{name}'"
    if proposal.rounds > policy.rounds:
        return f"{proposal.rounds} rounds where it allows {policy.rounds}"
    return _privacy_obstacle(policy, proposal) or _evaluation_obstacle(policy, proposal)


def _floor_of(folder: NodeFolder, proposal: Proposal) -> int | None:
    """The fewest samples behind anything that is told, of a method that tells statistics."""
    exchanges = proposal.rebuilt(folder.modules).algorithm.exchanges()
    return min((each.floor for each in exchanges if each.floor is not None), default=None)


def _privacy_obstacle(policy: PolicySettings, proposal: Proposal) -> str | None:
    private = dict(proposal.study.get("privacy") or {})
    if policy.local_noise and private.get("noise") != "local":
        return "it asks for noise that is added here"
    if policy.epsilon is None:
        return None
    epsilon = private.get("epsilon")
    if epsilon is None:
        return f"it asks for [privacy] with an epsilon of at most {policy.epsilon:g}"
    if not epsilon <= policy.epsilon:
        return f"epsilon {epsilon:g} where it allows {policy.epsilon:g}"
    return None


def _evaluation_obstacle(policy: PolicySettings, proposal: Proposal) -> str | None:
    return None if policy.evaluation or not proposal.evaluates else "evaluation on held-out samples"


def floor(policy: PolicySettings, samples: int, nodes: int | None) -> str | None:
    """Why nothing is answered however well approved, as the end of a sentence about the node; None if nothing speaks
    against it."""
    if samples < policy.minimum_samples:
        return f"has fewer samples than the {policy.minimum_samples} below which it answers nothing."
    if nodes is not None and nodes < policy.minimum_nodes:
        return f"answers only in federations of at least {policy.minimum_nodes} nodes; this one has {nodes}."
    return None


def check_decidable(folder: NodeFolder, proposal: Proposal, disclose: bool) -> None:
    """Refuse an approval that would not be what its owner thinks."""
    wrong = version_problem(proposal.parley)
    if wrong is not None:
        raise InputError(f"study {proposal.hash[:12]} cannot be answered: this node {wrong}")
    handed_out = discloses(folder, proposal)
    if handed_out and not disclose:
        raise InputError(
            f"study {proposal.hash[:12]} hands out {handed_out}; approve that in so many words with --disclose."
        )
    proposal.rebuilt(folder.modules)  # names modules that are missing or other ones
