"""Which results still count: a trial that was finished before is used again where its settings and this number agree.

Raise a family's number, in the same commit, when a change makes its trials come out differently although their settings
read the same: a corrected method or channel, other data, another partition, another default of a setting that matters,
or another rule of evaluation. Leave it when code only moved, got faster or was renamed: what was trained stays true.
"""

RESULTS = {
    "advise": 1,
    "channels": 1,
    "charles2021": 1,
    "flamby": 1,
    "gholami2025": 1,
    "privacy": 1,
    "shen2022": 1,
    "robust": 1,
    "su2023": 1,
    "tabular": 1,
    "yue2022": 1,
}


PAPERS = {"000": "su2023", "001": "charles2021", "002": "shen2022", "003": "yue2022", "004": "gholami2025"}
"""The papers' numbers, by which studies and their kept trials are registered, and the names that users read."""


def numbered(study: str) -> str:
    """The name that a study is registered by: `000/gain` of `su2023/gain`."""
    paper, slash, item = study.partition("/")
    return {authors: number for number, authors in PAPERS.items()}.get(paper, paper) + slash + item


def titled(study: str) -> str:
    """A study's name as users read it, with its authors: `su2023/gain` of `000/gain`."""
    paper, slash, item = study.partition("/")
    return PAPERS.get(paper, paper) + slash + item


def results_version(study: str) -> int:
    """Of the family that a study (`000/gain`) belongs to."""
    family = study.partition("/")[0]
    return RESULTS.get(PAPERS.get(family, family), 1)
