"""Listeners that pass every metric on to other programs; each needs a package of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Protocol

from parley.core.errors import InputError
from parley.core.extras import how_to_install
from parley.engine.listeners import Listener
from parley.store.records import RoundRecord

if TYPE_CHECKING:
    from parley.engine.run import Run

_TAG = "parley.run"
_LONGEST = 300
"""Characters of another program's complaint."""


class Wanted(Protocol):
    """The section [logging] of a study."""

    @property
    def tensorboard(self) -> str | None: ...
    @property
    def wandb(self) -> str | None: ...
    @property
    def mlflow(self) -> str | None: ...


def loggers(wanted: Wanted) -> list[Listener]:
    """A listener for each program that is configured."""
    made: list[Listener] = []
    if wanted.tensorboard is not None:
        made.append(TensorBoard(wanted.tensorboard, own_folder=True))
    if wanted.wandb is not None:
        made.append(WandB(wanted.wandb))
    if wanted.mlflow is not None:
        made.append(MLflow(wanted.mlflow))
    return made


class TensorBoard(Listener):
    """Writes every metric as a scalar; needs the extra `tensorboard`."""

    def __init__(self, folder: str | Path, *, own_folder: bool = False) -> None:
        """`own_folder`: write into a folder named after the run, so that several can be seen beside each other."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError(f"TensorBoard is not installed; {how_to_install('tensorboard')}.") from None
        self._open, self._folder, self._own_folder = SummaryWriter, Path(folder), own_folder
        self._writer: Any = None

    def start(self, run: Run, rounds: int) -> None:
        folder = self._folder / _title(run) if self._own_folder else self._folder
        try:
            self._writer = self._open(str(folder))
        except OSError as error:
            raise InputError(
                f"TensorBoard's files cannot be written to {folder} ({error.strerror or error}); name another folder "
                "in logging.tensorboard."
            ) from None

    def round(self, record: RoundRecord) -> None:
        for name, metric in record.metrics.items():
            self._writer.add_scalar(name, metric.value, record.number)

    def end(self, run: Run) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB(Listener):
    """Logs every metric to a project at Weights & Biases; needs the extra `wandb`.

    With `WANDB_MODE=offline` nothing leaves the machine: `wandb sync` sends it later.
    """

    def __init__(self, project: str) -> None:
        self._wandb, self._project = _package("wandb", "Weights & Biases"), project
        self._run: Any = None
        # W&B itself reads its environment once in a process.
        self._mode, self._folder = os.environ.get("WANDB_MODE"), os.environ.get("WANDB_DIR")
        if (self._mode or "online") not in ("offline", "disabled", "dryrun"):
            with self._reached():  # before a run is entered anywhere
                self._wandb.login()

    def start(self, run: Run, rounds: int) -> None:
        with self._reached():
            self._run = self._wandb.init(
                project=self._project, name=_title(run), id=run.id, resume="allow", mode=self._mode, dir=self._folder
            )

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except self._wandb.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise InputError(
                f"Weights & Biases cannot be reached ({reason}); log in with 'wandb login', or set WANDB_MODE=offline."
            ) from None

    def round(self, record: RoundRecord) -> None:
        self._run.log({name: metric.value for name, metric in record.metrics.items()}, step=record.number)

    def end(self, run: Run) -> None:
        if self._run is not None:
            self._run.finish(exit_code=int(run.status == "failed"))


class MLflow(Listener):
    """Logs every metric to an experiment in MLflow; needs the extra `mlflow`.

    Where it is kept, $MLFLOW_TRACKING_URI says: a server, or a file such as sqlite:///mlflow.db. A run that goes on is
    found there again by the tag `parley.run`, its id.
    """

    def __init__(self, experiment: str) -> None:
        self._mlflow, self._experiment, self._open = _package("mlflow", "MLflow"), experiment, False
        self._logged = -1
        """The last round that it has, of a run that goes on too: rounds since its checkpoint are the same again."""

    def start(self, run: Run, rounds: int) -> None:
        try:
            experiment = self._mlflow.set_experiment(self._experiment)
            known = None if run.id is None else self._known(experiment.experiment_id, run.id)
            if known is not None:
                self._mlflow.start_run(run_id=known)
            else:
                tags = {} if run.id is None else {_TAG: run.id}
                self._mlflow.start_run(run_name=_title(run), tags=tags)
        except (self._mlflow.MlflowException, OSError) as error:
            hint = "see $MLFLOW_TRACKING_URI"
            if "MLFLOW_ALLOW_FILE_STORE" in str(error):
                hint = (
                    "set $MLFLOW_TRACKING_URI to a database such as sqlite:///mlflow.db, or "
                    "MLFLOW_ALLOW_FILE_STORE=true to keep folders"
                )
            reason = shorten(str(error), _LONGEST, placeholder=" [...]").rstrip(".")
            raise InputError(f"MLflow cannot be reached ({reason}); {hint}.") from None
        self._open = True
        for record in run.records:
            self.round(record)

    def _known(self, experiment: str, run: str) -> str | None:
        """MLflow's id of a run that was told before."""
        client = self._mlflow.MlflowClient()
        runs = client.search_runs([experiment], f"tags.`{_TAG}` = '{run}'", max_results=1)
        if not runs:
            return None
        name = str(runs[0].info.run_id)
        steps = [
            metric_value.step
            for metric in runs[0].data.metrics
            for metric_value in client.get_metric_history(name, metric)
        ]
        self._logged = max(steps, default=-1)
        return name

    def round(self, record: RoundRecord) -> None:
        if record.number > self._logged:
            values = {name: metric.value for name, metric in record.metrics.items()}
            self._mlflow.log_metrics(values, step=record.number)
            self._logged = record.number

    def end(self, run: Run) -> None:
        if self._open:
            self._mlflow.end_run("FINISHED" if run.status in ("finished", "stopped") else "FAILED")


def _package(name: str, title: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise InputError(f"{title} is not installed; {how_to_install(name)}.") from None


def _title(run: Run) -> str:
    return run.id or run.name or type(run.algorithm).__name__
