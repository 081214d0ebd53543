"""The papers' figures and tables as runnable studies, judged by their checks; one package per paper or question."""

from importlib import import_module
from pkgutil import walk_packages

from parley.studies.harness import (
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

_HOLDING_STUDIES = ("advise", "paper", "channels", "flamby", "privacy", "tabular")
for _module in walk_packages(__path__, f"{__name__}."):
    if _module.name.removeprefix(f"{__name__}.").startswith(_HOLDING_STUDIES):
        import_module(_module.name)
