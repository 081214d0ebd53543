"""Stored runs brought back: the trained model of a run id, for export and prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parley.algorithms.base.protocol import as_algorithm
from parley.core.errors import InputError
from parley.data import DataInfo, Federation
from parley.data.federation import NumberedIds
from parley.data.sources import Elsewhere
from parley.engine.run import Run
from parley.engine.settings import Evaluation
from parley.engine.stopping import Headline
from parley.learn.metrics import scorers
from parley.learn.task import Task
from parley.models.export import FORMATS, Format, export_module
from parley.models.spec import PublicSpec
from parley.store.checkpoints import Checkpoints, expected_memories
from parley.store.memories import MEMORY, Memories
from parley.store.runs import RunInfo, RunStore
from parley.study.description import Study
from parley.study.difference import check_resumable
from parley.study.initial import Initial, with_weights
from parley.study.opaque import MARK, is_opaque
from parley.study.study import study_from_dict
from parley.study.task import make_task, pool, prepared


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
    found = store.checkpoint(info.id)
    if found is None:
        raise InputError(f"run '{info.id}' has no checkpoint yet.")
    federation, method = described.federation(), as_algorithm(described.algorithm)
    here = federation.here
    if here and method.pooled:
        federation = pool(federation)
    federation = prepared(method, federation, described.seed) if here else federation
    task = make_task(federation, described.model, described.seed, described.loss, described.buffers, try_out=here)
    number, manifest = found
    folder = store.folder(info.id)
    task = _with_initial(task, info, folder)
    states = Checkpoints(folder).load(manifest)
    if (
        not here
        and task.module is not None
        and any(value.dtype == torch.float64 for value in states["last"].get("model").values())
    ):
        task.network.double()  # as it was built for the data
    evaluation = described.evaluation or Evaluation()
    measured = scorers(evaluation.metrics, task.info.kind == "regression")
    return Run(
        method, task, federation, states["last"], store.records(info.id), states.get("best"),
        manifest["best_round"], manifest["best_value"], info.id, info.name, info.status,
        ending=str(info.summary.get("ended", "")), trial=info.trial, scorers=measured,
        headline=Headline.judged(info.headline, evaluation.headline, measured) if info.headline else None,
        memories=Memories.stored(folder / MEMORY, number, expected_memories(manifest)),
    )  # fmt: skip


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


def _absent(described: Mapping[str, Any]) -> Federation:
    """The clients of a run whose data were given in Python: their names and the shape of their samples."""
    about = described["info"]
    lists = {"shape": tuple(about["shape"]), "classes": tuple(about["classes"])}
    ids = tuple(described["ids"]) if "ids" in described else NumberedIds(described["clients"])
    reason = "the data of this run were given in Python; load it with load_run(store, run, study)."
    return Federation(DataInfo(**about | lists), ids, Elsewhere(reason=reason))


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
    study: Study | None = None,
) -> list[Path]:
    """Write the run's model (the last, the best, or a client's own) with a card that says where it comes from.

    See `export_module`, and `load_run` for `study`.
    """
    if client is not None and best:
        raise InputError("clients keep their models of the last round only; leave out best, or the client.")
    loaded = load_run(store, run, study)
    with ExitStack() as stack:
        kept = store if isinstance(store, RunStore) else stack.enter_context(RunStore(store, create=False))
        info = kept.info(run)
    federation = loaded.federation
    card = {
        "run": info.id, "status": info.status, "rounds": loaded.best_round if best else info.rounds,
        "model": "best" if best else "last" if client is None else f"that of client {client}",
        "results": loaded.summary(), "left_out": left_out(loaded), "study": portable(info.config),
        "classes": list(federation.info.classes),
    }  # fmt: skip
    module = loaded.module(best=best) if client is None else loaded.personal(client)
    return export_module(module, _example(federation, loaded.dtype), folder, formats, card)


def left_out(run: Run) -> dict[str, dict[str, Any]]:
    """Client -> the rounds that went on without it, and why it was missing the last time."""
    found: dict[str, dict[str, Any]] = {}
    for one in run.failures():
        entry = found.setdefault(one.client, {"rounds": []})
        entry["rounds"].append(one.round)
        entry["reason"] = one.reason
    return found


def portable(config: Any) -> Any:
    """A description without paths of this machine: of a folder or file only its name is kept."""
    if isinstance(config, Mapping):
        return {key: portable(value) for key, value in config.items()}
    if isinstance(config, list):
        return [portable(value) for value in config]
    if isinstance(config, str) and Path(config).is_absolute():
        return Path(config).name
    return config


def _example(federation: Federation, dtype: torch.dtype) -> Tensor:
    """Some inputs to try an exported model on."""
    if federation.here:
        return (federation.test or federation.client(federation.ids[0])).x[:8]
    kind = torch.int64 if federation.info.kind == "text" else dtype
    return torch.zeros((8, *federation.info.shape), dtype=kind)
