"""From Python what `parley tune` does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from parley.store.runs import RunStore
from parley.study.toml import study_table, tuning_of
from parley.tuning.candidates import candidates
from parley.tuning.search import SearchResult, search


def tune(
    study: Mapping[str, Any] | Path | str,
    params: Mapping[str, Any] | None = None,
    *,
    store: RunStore | Path | str | None = None,
    **settings: Any,
) -> list[SearchResult]:
    """Search settings of a study file, or of a table as one has it; one finding for each method.

    `params` and `settings` are those of the section `[tune]` and take the place of what stands there:
    `pl.tune("study.toml", {"algorithm.lr": "half-decades(-3, 1)"}, trials=8)[0].study()` is the best one. Trials are
    runs of the store, by default `parley-runs/runs.db`; the same call goes on after an interruption.
    """
    table = dict(study) if isinstance(study, Mapping) else study_table(study)
    base = Path.cwd() if isinstance(study, Mapping) else Path(study).parent
    section = dict(table.get("tune", {})) | settings | ({} if params is None else {"params": dict(params)})
    planned = candidates(table, base, tuning_of({"tune": section}))
    with ExitStack() as stack:
        kept = store if isinstance(store, RunStore) else stack.enter_context(RunStore(store))
        return search(planned, kept)
