"""How Sphinx builds the site: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

import parley

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # the makers beside this file

from docstrings import markup  # noqa: E402
from make_api import write_pages  # noqa: E402

project = "Parley"
author = "The Parley developers"
release = version = parley.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]

html_theme = "furo"
html_title = f"Parley {release}"
html_domain_indices = False  # the API reference is the index of modules
html_theme_options = {"source_edit_link": ""}

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # outputs are stored by make_tutorials.py
highlight_language = "none"  # a block that names no language is what a terminal shows, or a formula

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # those of torch are written in a markup of their own
autodoc_typehints = "none"  # signatures stay readable; fields are explained one by one
autodoc_default_options = {"members": True}


def _docstring(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    lines[:] = markup(lines)


def setup(app) -> None:  # type: ignore[no-untyped-def]
    write_pages(DOCS / "api")
    app.connect("autodoc-process-docstring", _docstring)
