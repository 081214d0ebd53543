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

for _module in walk_packages(__path__, f"{__name__}."):
    if _module.name.startswith(
        (f"{__name__}.paper", f"{__name__}.channels", f"{__name__}.privacy", f"{__name__}.tabular")
    ):
        import_module(_module.name)
