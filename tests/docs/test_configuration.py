"""The configuration page says what the code does."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_in_step_with_the_code():
    made = runpy.run_path(str(DOCS / "make_configuration.py"))
    written = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert written == made["page"](), "run python docs/make_configuration.py"
