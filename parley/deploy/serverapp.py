"""What runs at the server for a run, started by Flower: enrol the nodes, then train as anywhere else."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parley.algorithms.exchange import disclosed, parties
from parley.core.errors import InputError, ParleyError, QuorumError, StopRun
from parley.core.processes import end_with_parent
from parley.core.text import printable
from parley.data.schema import schema_differences
from parley.deploy import keys
from parley.deploy.carrier import Carrier
from parley.deploy.enrolment import clients_of, enrol, federation_of, parties_of
from parley.deploy.node_data import schema_of
from parley.deploy.proposal import Proposal
from parley.deploy.runtime import Engagement, Flower
from parley.deploy.server_folder import ServerFolder
from parley.deploy.stub import FOLDER
from parley.deploy.submissions import (
    ENROLLING,
    FAILED,
    FINISHED,
    QUEUED,
    RUNNING,
    STOPPED,
    Submission,
    Submissions,
    submitted_study,
)
from parley.engine.listeners import Listener
from parley.engine.roll_call import coverages, is_result, over_clients
from parley.engine.run import Run
from parley.engine.settings import Faults
from parley.store.locks import acquire, release
from parley.store.records import RoundRecord
from parley.store.runs import RunStore
from parley.study.train import train


def server_app() -> Any:
    from flwr.serverapp import ServerApp

    end_with_parent()  # Flower would go on trying to reach a server that is gone
    app = ServerApp()

    def main(grid: Any, context: Any) -> None:
        folder = ServerFolder.open(os.environ[FOLDER])
        carry_out(folder, str(context.run_config["submission"]), grid)

    app.main()(main)
    return app


def carry_out(folder: ServerFolder, id: str, grid: Any) -> None:
    """One submitted run from wherever it stands to its end; the submission says how it went.

    Where a run took long to start it may have been started twice: whoever comes first has it.
    """
    submissions = Submissions(folder)
    lock = submissions.path / f"{id}.run.lock"
    if not acquire(lock):
        return
    try:
        if submissions[id].active:
            _carry_out(folder, submissions, id, grid)
    finally:
        release(lock)


def _carry_out(folder: ServerFolder, submissions: Submissions, id: str, grid: Any) -> None:
    submission = submissions.update(id, pid=os.getpid(), status=ENROLLING)

    def note(text: str) -> None:
        submissions.note(id, text)

    try:
        if submissions.asked_to_stop(id):
            raise StopRun("it was asked to before it began")
        run = _trained(folder, submissions, submission, grid, note)
        status = {"finished": FINISHED, "stopped": STOPPED}.get(run.status, FAILED)
        reason = run.ending or f"{run.status} after round {run.records[-1].number if run.records else 0}."
    except StopRun as stop:
        status, reason = STOPPED, f"stopped: {stop}."
    except QuorumError as error:
        status, reason = STOPPED, str(error)
    except ParleyError as error:
        status, reason = FAILED, str(error)
    except Exception as error:
        lost = isinstance(error, ConnectionError) or type(error).__module__.split(".")[0] in ("httpx", "httpcore")
        status, reason = QUEUED if lost else FAILED, f"{type(error).__name__}: {error}"
        note(traceback.format_exc().replace("\n", " | "))
    note(f"{status}: {reason}")
    submissions.forget_stop(id)
    submissions.update(id, status=status, reason=printable(reason), pid=None)


def _trained(folder: ServerFolder, submissions: Submissions, submission: Submission, grid: Any, note: Any) -> Run:
    settings = folder.settings
    study = submitted_study(submission.study)
    if study.algorithm.needs.pooled:
        raise InputError(f"{study.algorithm.title} needs all data in one place, which nodes never give away.")
    proposal = Proposal.of(study, submission.roster)
    if proposal.hash != submission.hash:
        raise ParleyError("the study, its modules or Parley have changed since the run was submitted; submit it again.")

    def stopped() -> None:
        if submissions.asked_to_stop(submission.id):
            raise StopRun("by 'parley deploy stop'")

    known, numbers = folder.nodes(), folder.numbers()
    if submission.roster:  # who was registered since takes part in the next run
        known = {name: key for name, key in known.items() if submission.roster.get(name) == key}
    reachable = {name: numbers[key] for name, key in known.items() if key in numbers}
    carrier = Carrier(grid, reachable, int(settings.reply_megabytes * 1e6), stopped)
    faults = study.faults or Faults()
    enrolled = dict(submission.enrolled)
    if enrolled:  # who takes part in a run does not change when it goes on
        carrier.numbers = {name: number for name, number in reachable.items() if name in enrolled}
    if not submission.invited:
        note(f"study {proposal.hash[:12]} ({proposal.title}): {len(carrier.numbers)} nodes are invited.")
        fresh = enrol(
            carrier,
            submission.run_name,
            proposal,
            settings.enrolment,
            faults,
            note,
            parties(study.algorithm.exchanges()),
            settings.decision,
        )
        enrolled = enrolled or fresh
    describes = any(each.floor is not None for each in study.algorithm.exchanges())
    for difference in schema_differences(
        {name: schema_of(description) for name, description in clients_of(enrolled).items()}
    ):
        if not difference.harmless or describes:
            note(f"{difference.client} {difference.what}.")
    federation = federation_of(enrolled)
    submission = submissions.update(submission.id, enrolled=enrolled, invited=True, status=RUNNING)
    engagement = Engagement(submission.run_name, proposal.hash, federation.info, settings.wait, parties_of(enrolled))
    consent = {
        "study": proposal.hash,
        "discloses": disclosed(study.algorithm.exchanges()),
        "nodes": {name: {"key": keys.fingerprint(known[name])} | _size(enrolled.get(name)) for name in sorted(known)},
    }
    resume = submission.run if submission.run is not None and _has_begun(folder, submission.run) else None
    return train(
        replace(study, data=federation, checkpoint=0.0, device="cpu"),
        store=folder.store,
        resume=resume,
        listeners=[RunLog(submissions, submission.id, list(enrolled)), Consent(folder.store, consent)],
        execute=lambda job: Flower(job, carrier, engagement),
    )


def _has_begun(folder: ServerFolder, run: str) -> bool:
    with RunStore(folder.store, create=False) as store:
        return store.checkpoint(run) is not None


def _size(description: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a node takes part with; nothing if it does not."""
    return (
        {name: description[name] for name in ("samples", "test_samples", "party") if name in description}
        if description
        else {}
    )


class Consent(Listener):
    """Keeps with the run whom the study was proposed to, and whose owners approved it."""

    def __init__(self, store: Path, facts: Mapping[str, Any]) -> None:
        self.store, self.facts = store, facts

    def start(self, run: Run, rounds: int) -> None:
        with RunStore(self.store, create=False) as store:
            store.attach(str(run.id), "consent", self.facts)


class RunLog(Listener):
    """Keeps the log of a run: every round with its roll-call."""

    def __init__(self, submissions: Submissions, id: str, enrolled: list[str]) -> None:
        self.submissions, self.id, self.enrolled = submissions, id, enrolled

    def start(self, run: Run, rounds: int) -> None:
        self.submissions.update(self.id, run=run.id)
        done = run.records[-1].number if run.records else 0
        self.note(f"run {run.id}: {rounds} rounds with {', '.join(self.enrolled)}; {done} are done.")

    def note(self, text: str) -> None:
        self.submissions.note(self.id, text)

    def round(self, record: RoundRecord) -> None:
        metrics = record.metrics
        asked = len(metrics["down/bytes"].clients) or int(metrics["cohort"].value) if "cohort" in metrics else 0
        roll = f"asked {asked}, answered {int(metrics['cohort'].value)}" if "cohort" in metrics else "evaluated"
        missing = "".join(f"; missing: {failure.client} {failure.reason.rstrip('.')}" for failure in record.failures)
        over = coverages([record])
        judged = [
            f"{name} {metrics[name].value:.4g}{over_clients(over.get(name, ''))}"
            for name in sorted(filter(is_result, metrics))
            if name.startswith("clients/")
        ]
        self.note(f"round {record.number}: {roll}{missing}{'; ' if judged else ''}{', '.join(judged)}.")
        if self.submissions.asked_to_stop(self.id):
            raise StopRun("by 'parley deploy stop'")
