"""All studies: importing this registers them."""

from importlib import import_module
from pkgutil import walk_packages

import parley_papers
from parley_papers.harness import (
    SCALES,
    Check,
    RegisteredStudy,
    Scale,
    StudyContext,
    StudyResult,
    at_least,
    at_most,
    holds,
    matching,
    near,
    run_study,
    studies,
    study,
    unchecked,
)

__all__ = [
    "SCALES",
    "Check",
    "RegisteredStudy",
    "Scale",
    "StudyContext",
    "StudyResult",
    "at_least",
    "at_most",
    "holds",
    "matching",
    "near",
    "run_study",
    "studies",
    "study",
    "unchecked",
]  # fmt: skip

for _module in walk_packages(parley_papers.__path__, "parley_papers."):
    if _module.name.count(".") > 1 and not _module.name.startswith("parley_papers.figures"):
        import_module(_module.name)
