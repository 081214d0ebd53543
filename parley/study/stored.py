"""Stored runs brought back: the trained model of a run id, for export and prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from parley.algorithms.protocol import as_algorithm
from parley.core.errors import InputError
from parley.core.message import State
from parley.data import DataInfo, Federation
from parley.data.checks import SampleForm
from parley.data.columns import Column
from parley.data.encoding import Encoding
from parley.data.federation import NumberedIds
from parley.data.scaling import Scaling
from parley.data.sources import Elsewhere
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.engine.stopping import Headline
from parley.models.export import FORMATS, Format
from parley.models.spec import PublicSpec
from parley.store.checkpoints import Checkpoints, expected_memories, read_newest
from parley.store.memories import MEMORY, Memories
from parley.store.records import COUNTS
from parley.store.runs import RunInfo, RunStore
from parley.study.difference import check_resumable
from parley.study.initial import Initial, with_weights
from parley.study.opaque import MARK, is_opaque
from parley.study.study import Study
from parley.study.task import make_task, pool
from parley.study.toml import study_from_dict
from parley.training.metrics import scorers
from parley.training.pooled import Counts, Method
from parley.training.task import Task


def load_run(store: RunStore | str | Path, run: str, study: Study | None = None) -> Run:
    """The run as `train` returned it, at its newest checkpoint; `run` is an id, the beginning of one, or 'last'.

    Its data are loaded again, because the model's shape follows from them. `study` is needed where the run was made of
    objects that only Python can make, and must be the one it was trained with; where only the data were, the run does
    without them and can still predict.
    """
    with ExitStack() as stack:
        kept = store if isinstance(store, RunStore) else stack.enter_context(RunStore(store, create=False))
        return _loaded(kept, kept.info(run), study)


def _loaded(store: RunStore, info: RunInfo, study: Study | None) -> Run:
    if study is not None:
        check_resumable(info.id, info.config, study.stored())
    described = study or _rebuilt(info)
    if store.checkpoint(info.id) is None:
        raise InputError(f"run '{info.id}' has no checkpoint yet.")
    federation, method = described.federation(), as_algorithm(described.algorithm)
    here = federation.here
    if here and method.needs.pooled:
        federation = pool(federation)
    task = make_task(
        federation,
        described.model,
        described.seed,
        described.loss,
        described.buffers,
        precision=described.precision,
        try_out=here,
    )
    folder = store.folder(info.id)
    task = _with_initial(task, info, folder)

    def read(number: int, manifest: dict[str, Any]) -> tuple[int, dict[str, Any], dict[str, State], Memories]:
        memories = Memories.stored(folder / MEMORY, number, expected_memories(manifest))
        return number, manifest, Checkpoints(folder).load(manifest), memories

    number, manifest, states, memories = read_newest(store, info.id, read)
    if (
        not here
        and task.module is not None
        and any(value.dtype == torch.float64 for value in states["last"].get("model").values())
    ):
        task.network.double()  # as it was built for the data
    evaluation = described.evaluation or Evaluation()
    measured = scorers(evaluation.metrics, task.info)
    return Run(
        method,
        task,
        federation,
        states["last"],
        [r for r in store.records(info.id) if r.number <= number],
        states.get("best"),
        manifest["best_round"],
        manifest["best_value"],
        info.id,
        info.name,
        info.status,
        ending=str(info.summary.get("ended", "")),
        trial=info.trial,
        scorers=measured,
        headline=Headline.judged(info.headline, evaluation.headline, measured) if info.headline else None,
        memories=memories,
        config=info.config,
        counts=Counts.read(info.summary[COUNTS]) if COUNTS in info.summary else None,
    )


def _with_initial(task: Task, info: RunInfo, folder: Path) -> Task:
    """With the weights that a warm start began from, for what a method leaves as it was."""
    described = info.config.get("init_from")
    initial = Initial.kept(folder, info.id, described.get("digest")) if described else None
    return task if initial is None else with_weights(task, initial.weights)


def _rebuilt(info: RunInfo) -> Study:
    """The study of a run from its description alone."""
    config = {key: value for key, value in info.config.items() if key != "init_from"}  # the run has the weights
    if not config:
        raise InputError(f"run '{info.id}' was stored without a description, so it cannot be rebuilt.")
    for part in ("algorithm", "model", "loss"):
        if is_opaque(config[part] or {}):
            raise InputError(
                f"run '{info.id}' has a part that only Python can make, {part} = {_name(config[part])}; "
                "load it in Python with load_run(store, run, study)."
            )
    if not is_opaque(config["data"]):
        return study_from_dict(config)
    stand_in = {"name": "iris", "clients": 1}
    rebuilt = study_from_dict({k: v for k, v in config.items() if k != "data_fingerprint"} | {"data": stand_in})
    if isinstance(rebuilt.model, PublicSpec):
        raise InputError(
            f"run '{info.id}' has a model that looks at data which were given in Python; "
            "load it in Python with load_run(store, run, study)."
        )
    return replace(rebuilt, data=_absent(config["data"]))


def _scaling(described: Mapping[str, Any] | None) -> Scaling | Encoding | None:
    """What was done to the samples, from its description."""
    if not described:
        return None
    if "table" in described:
        return Encoding(tuple(described["columns"]), tuple(Column(**column) for column in described["table"]))
    numbers: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in described.items()}
    return Scaling(**numbers)


def _absent(described: Mapping[str, Any]) -> Federation:
    """The clients of a run whose data were given in Python: their names and the shape of their samples."""

    def tuples(table: Mapping[str, Any]) -> dict[str, Any]:
        return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}

    about = dict(described["info"])
    reason = "the data of this run were given in Python; load it with load_run(store, run, study)."
    if is_opaque(about.get("scaling")):
        raise InputError(f"by which numbers the samples were scaled was not stored, and {reason}")
    levels = tuple(map(tuple, about.get("levels", ())))
    about = tuples(about) | {"scaling": _scaling(about.get("scaling")), "levels": levels}
    ids = tuple(described["ids"]) if "ids" in described else NumberedIds(described["clients"])
    info, form = DataInfo(**about), None
    if described.get("dtype") == "float64":  # a network shows it by its weights, trees do not
        numbers = info.kind == "regression"
        shape = torch.Size([info.outputs] if numbers and info.outputs > 1 else [])
        form = SampleForm(torch.Size(info.shape), torch.float64, shape, torch.float64 if numbers else torch.int64)
    return Federation(info, ids, Elsewhere(known=form, reason=reason))


def _name(described: Any) -> str:
    return str(described[MARK]) if isinstance(described, Mapping) and MARK in described else "a nested object"


def export_run(
    store: RunStore | str | Path,
    run: str,
    folder: Path | str,
    *,
    best: bool = False,
    client: str | None = None,
    formats: Sequence[Format] = FORMATS,
    recalibrate: Method | None = None,
    study: Study | None = None,
) -> list[Path]:
    """Load the run and write its model; see `Run.export`, and `load_run` for `study`."""
    trained = load_run(store, run, study)
    return trained.export(folder, best=best, client=client, formats=formats, recalibrate=recalibrate)
