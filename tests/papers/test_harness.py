"""The studies harness: checks judge, files are whole, mistakes are refused in a sentence."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from parley.core.errors import InputError
from parley.core.registry import Registry
from parley_papers import harness
from parley_papers.catalogue import (
    Scale,
    StudyContext,
    StudyResult,
    at_least,
    at_most,
    holds,
    matching,
    near,
    run_study,
    study,
    unchecked,
)
from parley_papers.printed import catalogue, checks_table, verdict


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small studies in place of the real ones."""
    registry: Registry[harness.RegisteredStudy] = Registry("study")
    monkeypatch.setattr(harness, "studies", registry)
    monkeypatch.setattr("parley_papers.printed.studies", registry)

    @study("009/good", scales={"smoke": "one number", "cpu": "two numbers"})
    def good(scale: Scale, context: StudyContext) -> StudyResult:
        """Shows that one is one."""
        figure = Figure()
        figure.add_subplot().plot([1, 2])
        data = {"curve": np.arange(3.0), "odd": math.inf, "nested": [{"x": np.float64(2)}]}
        return context.result([near("one", 1.0, 1.0)], {"line": figure}, data)

    @study("009/bad", scales={"smoke": "one number"})
    def bad(scale: Scale, context: StudyContext) -> StudyResult:
        """Claims too much."""
        return context.result([at_most("big", 5.0, 1.0), at_least("big enough", 5.0, 1.0)])


def shown(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=100, color_system=None).print(renderable)
    return out.getvalue()


@pytest.mark.parametrize(
    ("check", "passed"),
    [
        (at_most("a", 1.0, 1.0), True),
        (at_most("a", 1.1, 1.0), False),
        (at_most("a", math.nan, 1.0), False),
        (at_least("a", 1.0, 1.0), True),
        (at_least("a", math.nan, 1.0), False),
        (near("a", 1.019, 1.0, relative=0.02), True),
        (near("a", 1.021, 1.0, relative=0.02), False),
        (near("a", -1.019, -1.0, relative=0.02), True),
        (near("a", 1e-9, 0.0, absolute=1e-8), True),
        (near("a", math.nan, 1.0, absolute=10.0), False),
        (holds("a", False, "b", "c"), False),
    ],
)
def test_checks_judge(check: harness.Check, passed: bool) -> None:
    assert check.passed is passed


def test_a_study_leaves_json_and_figures(tmp_path: Path) -> None:
    result = run_study("009/good", "smoke", tmp_path)
    assert result.passed
    assert [str(file.relative_to(tmp_path)) for file in result.files] == [
        "009/good/smoke.json",
        "009/good/smoke-line.png",
    ]
    read = json.loads(result.files[0].read_text())
    assert read["data"] == {"curve": [0.0, 1.0, 2.0], "odd": "inf", "nested": [{"x": 2.0}]}
    assert read["checks"] == [{"name": "one", "measured": 1.0, "expected": 1.0, "passed": True, "relation": "= ± 0%"}]
    assert (read["study"], read["scale"], read["passed"]) == ("009/good", "smoke", True)
    assert result.files[1].read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (tmp_path / "009/good").iterdir()) == ["smoke-line.png", "smoke.json"]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_study("009/good").files == ()
    assert not list(tmp_path.iterdir())


def test_a_failed_check_fails_the_study_and_is_named() -> None:
    result = run_study("009/bad")
    assert not result.passed
    assert "1 of 2 checks FAILED" in str(verdict(result))
    assert str(verdict(result)).endswith(": big")
    text = shown(checks_table(result))
    assert "✗" in text
    assert "<= 1" in text


def test_what_a_scale_is_too_small_for_is_neither_passed_nor_failed() -> None:
    """However the number came out, it is shown as not checked; a study in which nothing is checked is refused."""

    @study("009/small", scales={"smoke": "too small"})
    def small(scale: Scale, context: StudyContext) -> StudyResult:
        """Checks one statement of three."""
        left_out = [unchecked(at_most("wrong", 5.0, 1.0)), unchecked(at_most("right", 0.5, 1.0))]
        return context.result([near("one", 1.0, 1.0), *left_out])

    result = run_study("009/small")
    assert [check.passed for check in result.checks] == [True, None, None]
    assert result.passed
    assert str(verdict(result)).startswith("1 check passed in")
    assert str(verdict(result)).endswith("2 not checked at this scale")
    assert shown(checks_table(result)).count("–") == 2
    with pytest.raises(InputError, match="one of them judged"):
        StudyContext("009/x", "smoke").result([unchecked(at_most("a", 1, 2))])


def test_a_paper_s_claims_are_judged_at_every_scale_but_smoke() -> None:
    judged = {scale: harness.claims([at_most("big", 5.0, 1.0)], scale)[0].passed for scale in harness.SCALES}
    assert judged == {"smoke": None, "cpu": False, "paper": False}


def test_studies_are_listed_and_found() -> None:
    text = shown(catalogue())
    assert "009/good" in text
    assert "Shows that one is one." in text
    assert "smoke cpu" in text
    assert matching("009") == matching("all") == ["009/bad", "009/good"]
    assert matching("009/good") == ["009/good"]
    with pytest.raises(InputError, match="unknown study '009/goood': did you mean '009/good'"):
        matching("009/goood")


def test_mistakes_are_told() -> None:
    with pytest.raises(InputError, match="unknown study '009/god': did you mean '009/good'"):
        run_study("009/god")
    with pytest.raises(InputError, match="study '009/bad' has no scale 'cpu'"):
        run_study("009/bad", "cpu")
    with pytest.raises(InputError, match="needs a docstring"):
        study("009/silent", scales={})(lambda scale, context: context.result([]))
    with pytest.raises(InputError, match="name of their own"):
        StudyContext("009/x", "smoke").result([at_most("a", 1, 2), at_most("a", 1, 3)])
