"""A new method from nothing: its file, a study that trains it and a test that passes as written."""

from __future__ import annotations

import keyword
import re
from importlib import resources
from pathlib import Path
from string import Template

from parley.algorithms import algorithms
from parley.core.errors import InputError
from parley.core.files import write_atomically

_FILES = {"algorithm.txt": "{}.py", "study.txt": "{}.toml", "test.txt": "test_{}.py"}


def new_algorithm(name: str, folder: Path | str = ".") -> list[Path]:
    """Write the skeleton of an algorithm called `name` ("my-method") to the folder; files that are there stay."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    file = "_".join(words)
    if keyword.iskeyword(file):
        raise InputError(f"'{name}' is a word of Python's own; choose another name, such as 'my-{name}'.")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9 _-]{0,59}", name):
        raise InputError(
            f"an algorithm is named by letters, digits and hyphens, such as 'my-method', not '{name[:80]}'."
        )
    if name in algorithms:
        raise InputError(
            f"there is an algorithm '{name}' already (parley list algorithms {name}); choose another name."
        )
    paths = {source: Path(folder) / target.format(file) for source, target in _FILES.items()}
    if taken := [path for path in paths.values() if path.exists()]:
        raise InputError(f"{taken[0]} exists already; move it, or choose another name or folder.")
    values = {"file": file, "title": name, "class": "".join(word.capitalize() for word in words)}
    skeletons = resources.files(__package__).joinpath("skeletons")
    for source, path in paths.items():
        text = Template(skeletons.joinpath(source).read_text(encoding="utf-8")).substitute(values)
        write_atomically(path, text.encode())
    return list(paths.values())
