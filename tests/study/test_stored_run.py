"""Which stored run a study's seed is: one that has finished it, or one to go on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from parley.engine.settings import Evaluation
from parley.store.runs import RunStore
from parley.study.several_seeds import stored_run
from parley.study.toml import study_from_dict
from parley.study.train import train

STUDY = study_from_dict(
    {
        "rounds": 4,
        "data": {"name": "iris", "clients": 4},
        "model": {"name": "linear"},
        "algorithm": {"name": "fedavg", "steps": 2},
    }
)
EASY = replace(STUDY, evaluation=Evaluation(target=0.01))


def test_what_a_target_ended_is_gone_on_with_without_it(tmp_path: Path) -> None:
    with RunStore(tmp_path / "runs.db") as store:
        assert stored_run(store, STUDY) == (None, False)
        run = train(EASY, store=store)
        assert run.records[-1].number < 4
        assert stored_run(store, EASY) == (run.id, False)
        assert stored_run(store, STUDY) == (None, True)
        again = train(STUDY, store=store, resume=True)
        assert (again.id, again.records[-1].number) == (run.id, 4)
        assert stored_run(store, STUDY) == (run.id, False)
        assert stored_run(store, replace(STUDY, rounds=3)) == (run.id, False)
        assert stored_run(store, replace(STUDY, rounds=5)) == (None, True)
