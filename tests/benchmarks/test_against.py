"""Two checkouts in interleaved pairs: the other one's code is what runs, and the interval covers the true ratio."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import parley
from parley.cli.main import main
from parley.core.errors import InputError
from parley_benchmarks.against import PAIRS, against, paired_table, ratio_interval

HERE = Path(parley.__file__).parents[1]


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout, of another version, that takes 20 ms longer for every chunk."""
    root = tmp_path_factory.mktemp("other")
    for package in ("parley", "parley_benchmarks", "parley_papers"):
        shutil.copytree(HERE / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, before, after in (
        ("parley/__init__.py", f'"{parley.__version__}"', '"0.other"'),
        (
            "parley_benchmarks/contestants/protocol.py",
            "        contestant.run(command[",
            "        time.sleep(0.02)\n        contestant.run(command[",
        ),
    ):
        text = (root / name).read_text()
        assert text.count(before) == 1
        (root / name).write_text(text.replace(before, after))
    return root


@pytest.mark.long
def test_a_slower_checkout_is_seen(slower: Path) -> None:
    said: list[str] = []
    (found,) = against(slower, ["empty"], "smoke", say=said.append)
    assert (found.workload, found.contestant, found.against) == ("EMPTY", "parley", str(slower))
    assert len(found.ours) == len(found.theirs) == PAIRS
    assert min(found.theirs) >= 0.02
    assert 1.5 < found.low <= found.speedup <= found.high
    assert found.difference == 0.0
    assert found.versions == (parley.__version__, "0.other")
    turns = [" in " in line for line in said if "chunk" in line]
    assert turns == [False, True, True, False] * (PAIRS // 2) + [False, True]
    assert "EMPTY" in str(paired_table([found]).columns[0]._cells)


@pytest.mark.long
def test_the_command_prints_the_pairs(slower: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "EMPTY", "--scale", "smoke", "--against", str(slower)])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "times as fast" in shown
    assert "95% interval" in shown


def test_the_interval_is_of_the_median_ratio() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        drift = np.exp(rng.normal(0, 0.5, 25))  # the machine's load, the same for both sides of a pair
        ours, theirs = drift * np.exp(rng.normal(0, 0.05, 25)), 1.2 * drift * np.exp(rng.normal(0, 0.05, 25))
        ratio, low, high = ratio_interval(theirs.tolist(), ours.tolist())
        assert low <= ratio <= high
        hits += low <= 1.2 <= high
    assert hits >= 180
    assert ratio_interval([3.0] * 9, [2.0] * 9) == (1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"checkout": "nowhere"}, "is no checkout of Parley"),
        ({"names": ["FEDALS-STEP"]}, "no race between checkouts"),
        ({"names": ["EMPTY"], "contestants": ["pfl"]}, "unknown contestant 'pfl'"),
        ({"pairs": 3}, "at least 9 pairs"),
    ],
)
def test_what_cannot_be_raced_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        against(**({"checkout": HERE, "scale": "smoke"} | settings))
