"""Submitted runs: a file for each, which says how far it has come. The server starts them in their order.

The name of a submission follows from the study, so that submitting the same study twice is the same as once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parley.core.errors import InputError, nearest
from parley.core.files import write_atomically
from parley.core.text import printable
from parley.deploy.server_folder import ServerFolder
from parley.store.locks import acquire, release

if TYPE_CHECKING:
    from parley.deploy.proposal import Proposal
    from parley.study.study import Study

QUEUED, STARTING, ENROLLING, RUNNING = "queued", "starting", "enrolling", "running"
ACTIVE = (QUEUED, STARTING, ENROLLING, RUNNING)
FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"


@dataclass(frozen=True)
class Submission:
    """A run on its way."""

    id: str
    study: Mapping[str, Any]
    """{"table": what the study file says, "base": the folder it lies in}."""
    hash: str
    """Of the proposal that owners approve."""
    lineage: str
    run_name: str
    """What nodes call the run; the same for a study that goes on for more rounds."""
    status: str = QUEUED
    reason: str = ""
    """Why it ended, or what it waits for."""
    run: str | None = None
    """Its id in the run store."""
    enrolled: Mapping[str, Any] = field(default_factory=dict)
    """Node -> what it said of its samples; frozen when the run began."""
    invited: bool = False
    """Whether enrolment came to its end."""
    attempts: int = 0
    """How often it was started."""
    pid: int | None = None
    flower: int | None = None
    """The number of Flower's run."""
    changed: float = 0.0
    roster: Mapping[str, str] = field(default_factory=dict)
    """Name -> public key of the nodes when it was submitted, which owners approve."""

    @property
    def active(self) -> bool:
        return self.status in ACTIVE


def submitted_study(written: Mapping[str, Any]) -> Study:
    """The study of a submission; its data are those of the nodes, whatever it says."""
    from parley.study.toml import study_from_dict

    table = {name: value for name, value in written["table"].items() if name != "data"}
    return study_from_dict(table | {"data": {"name": "iris", "clients": 1}}, written["base"])


class Submissions:
    """The files in the server's folder `runs`."""

    def __init__(self, folder: ServerFolder) -> None:
        self.path = folder.path / "runs"

    def all(self) -> list[Submission]:
        """In the order in which they were submitted."""
        submissions = [self._read(path) for path in self.path.glob("*.json")]
        return sorted(submissions, key=lambda submission: (submission.id.split("-", 1)[0], submission.id))

    def __getitem__(self, id: str) -> Submission:
        """By its id, the beginning of one, or 'last'."""
        known = self.all()
        chosen = known[-1:] if id == "last" else [submission for submission in known if submission.id.startswith(id)]
        exact = [submission for submission in known if submission.id == id]
        if len(exact or chosen) != 1:
            hint = nearest(id, [submission.id for submission in known]) if not chosen else f"{len(chosen)} begin so."
            raise InputError(f"no run '{id[:80]}' was submitted: {hint}")
        return (exact or chosen)[0]

    def submit(
        self, table: Mapping[str, Any], proposal: Proposal, *, again: bool, resume: bool
    ) -> tuple[Submission, bool]:
        """The submission of a study, and whether it is new or goes on now; the same study is not submitted twice."""
        same = [
            submission
            for submission in self.all()
            if submission.hash == replace(proposal, roster=submission.roster).hash
        ]
        if same and not again:
            last = same[-1]
            if last.active or last.status == FINISHED:
                return last, False
            return self.write(replace(last, study=table, status=QUEUED, attempts=0, invited=False, reason="")), True
        number = len(list(self.path.glob("*.json"))) + 1
        made = Submission(f"{number:04d}-{proposal.hash[:12]}", table, proposal.hash, proposal.lineage, "")
        made = replace(made, run_name=made.id, roster=dict(proposal.roster))
        if resume:
            before = [
                submission
                for submission in self.all()
                if submission.lineage == proposal.lineage and submission.run is not None
            ]
            if not before:
                raise InputError("there is no earlier run of this study to resume; leave out --resume.")
            if before[-1].active:
                raise InputError(f"run {before[-1].id} of this study has not ended yet.")
            old = before[-1]
            made = replace(made, run_name=old.run_name, run=old.run, enrolled=old.enrolled)
        return self.write(made), True

    def write(self, submission: Submission) -> Submission:
        changed = replace(submission, changed=time.time())
        write_atomically(
            self.path / f"{submission.id}.json", json.dumps(asdict(changed), indent=1).encode(), private=True
        )
        return changed

    def update(self, id: str, **changes: Any) -> Submission:
        """Change some of what is known; the server and the run itself both do."""
        lock = self.path / f"{id}.lock"
        while not acquire(lock):
            time.sleep(0.01)
        try:
            return self.write(replace(self._read(self.path / f"{id}.json"), **changes))
        finally:
            release(lock)

    # --- what goes with a run ---

    def log(self, id: str) -> Path:
        return self.path / f"{id}.log"

    def note(self, id: str, text: str) -> None:
        """A line in the run's log."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with self.log(id).open("a", encoding="utf-8") as file:
            file.write(f"{stamp} {printable(' '.join(text.split()))}\n")

    def ask_to_stop(self, id: str) -> None:
        (self.path / f"{id}.stop").touch()

    def asked_to_stop(self, id: str) -> bool:
        return (self.path / f"{id}.stop").exists()

    def forget_stop(self, id: str) -> None:
        (self.path / f"{id}.stop").unlink(missing_ok=True)

    def _read(self, path: Path) -> Submission:
        return Submission(**json.loads(path.read_bytes()))
