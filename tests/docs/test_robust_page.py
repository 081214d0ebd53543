"""docs/robust.md: its program runs as printed, its sections are the example's, its lists are whole."""

import re
import tomllib
from pathlib import Path

from parley.core.fields import settings_of
from parley.engine.attackers import STRENGTH
from parley.engine.settings import Attack
from parley.robust.settings import Robust, Rule
from parley_papers.catalogue import studies

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "robust.md").read_text(encoding="utf-8")
EXAMPLE = tomllib.loads((ROOT / "examples" / "robust-digits.toml").read_text(encoding="utf-8"))


def test_the_program_runs_as_printed() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "robust.md", "exec"), names)
    assert names["robust"].last() > 0.8  # type: ignore[attr-defined]
    assert names["plain"].last() < 0.5  # type: ignore[attr-defined]


def test_the_sections_are_those_of_the_example() -> None:
    robust, faults = map(tomllib.loads, re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
    assert robust["robust"] == EXAMPLE["robust"]
    assert faults["faults"] == EXAMPLE["faults"]


def test_every_rule_attack_and_strength_is_on_the_page() -> None:
    for rule in Rule.__args__:  # type: ignore[attr-defined]
        assert f"| `{rule}`" in PAGE
    for attack in Attack.__args__:  # type: ignore[attr-defined]
        (strength,) = re.findall(rf"^\| `{attack}` \|.*\| ([\d.]*) ?\|$", PAGE, re.MULTILINE)
        assert strength == (f"{STRENGTH[attack]:g}" if attack in STRENGTH else "")
    assert {"bound", "mixing", "cap", "f", "m", "radius"} <= {setting.name for setting in settings_of(Robust)}


def test_the_picture_and_the_study_exist() -> None:
    for picture in re.findall(r"\]\((figures/[^)]+)\)", PAGE):
        assert (ROOT / "docs" / picture).is_file()
    for name in re.findall(r"parley reproduce (\S+)", PAGE):
        assert name in studies
