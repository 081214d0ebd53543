"""Prints the floors of the dependencies in pyproject.toml as constraints: `numpy>=1.26` becomes `numpy==1.26`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path


def floors(requirements: list[str]) -> list[str]:
    """One pin per requirement; those without a floor are refused."""
    found = []
    for each in requirements:
        match = re.match(r"([A-Za-z0-9._-]+)>=([0-9.]+)", each)
        if match is None:
            raise SystemExit(f"{each} has no floor")
        found.append(f"{match[1]}=={match[2]}")
    return found


if __name__ == "__main__":
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print("\n".join(floors(project["dependencies"])))
