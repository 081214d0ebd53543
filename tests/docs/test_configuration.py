"""The configuration pages say what the code does."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_in_step_with_the_code():
    made = runpy.run_path(str(DOCS / "make_configuration.py"))["pages"]()
    for path, text in made.items():
        assert (DOCS / path).read_text(encoding="utf-8") == text, f"{path}: run python docs/make_configuration.py"
    assert {f"configuration/{page.name}" for page in (DOCS / "configuration").glob("*.md")} < set(made)
