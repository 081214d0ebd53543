"""Stored runs brought back: the trained model of a run id, for export and prediction."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parley.core.errors import InputError
from parley.engine.run import Run
from parley.models.export import FORMATS, Format, export_module
from parley.store.checkpoints import Checkpoints
from parley.store.memories import MEMORY, Memories
from parley.store.runs import RunStore
from parley.study.study import study_from_dict
from parley.study.train import make_task, pool, prepared


def load_run(store: RunStore, run: str) -> Run:
    """The run as `train` returned it, at its newest checkpoint; `run` is an id, the beginning of one, or 'last'.

    Its data are loaded again, because the model's shape follows from them.
    """
    info = store.info(run)
    if not info.config:
        raise InputError(f"run '{info.id}' was started from Python without a study, so it cannot be rebuilt by itself.")
    found = store.checkpoint(info.id)
    if found is None:
        raise InputError(f"run '{info.id}' has no checkpoint yet.")
    study = study_from_dict(info.config)
    federation = study.federation()
    if study.algorithm.pooled:
        federation = pool(federation)
    federation = prepared(study.algorithm, federation, study.seed)
    task = make_task(federation, study.model, study.seed, study.loss, study.buffers)
    number, manifest = found
    folder = store.folder(info.id)
    states = Checkpoints(folder).load(manifest["states"])
    return Run(
        study.algorithm, task, federation, states["last"], store.records(info.id), states.get("best"),
        manifest["best_round"], manifest["best_value"], info.id, info.name, info.status,
        memories=Memories(folder / MEMORY, until=number),
    )  # fmt: skip


def export_run(
    store: RunStore, run: str, folder: Path | str, *, best: bool = False, formats: Sequence[Format] = FORMATS
) -> list[Path]:
    """Write the run's model (the last, or the best) with a card that says where it comes from; see `export_module`."""
    loaded = load_run(store, run)
    info = store.info(run)
    federation = loaded.federation
    example = (federation.test or federation.client(federation.ids[0])).x[:8]
    card = {
        "run": info.id, "status": info.status, "rounds": loaded.best_round if best else info.rounds,
        "model": "best" if best else "last", "results": loaded.summary(), "study": info.config,
        "classes": list(federation.info.classes),
    }  # fmt: skip
    return export_module(loaded.module(best=best), example, folder, formats, card)
