"""Executes the notebooks of docs/tutorials in a copy of what a clone has, and stores what they showed.

python docs/make_tutorials.py                     # all of them, in place
python docs/make_tutorials.py own-method --out DIR    # one of them, executed, to DIR
"""

from __future__ import annotations

import argparse
import base64
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
COLOURS = 64
"""Of a stored figure, which so takes a third of the room."""


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook after a run from its first cell to its last; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as temporary:
        clone = Path(temporary) / "parley"
        folder = clone / "docs" / "tutorials"
        folder.mkdir(parents=True)
        shutil.copytree(ROOT / "examples", clone / "examples")
        environment = dict.fromkeys(("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"), temporary)
        environment |= {
            "OMP_NUM_THREADS": "1",
            "TTY_COMPATIBLE": "0",
            "COLUMNS": "110",
        }  # plain lines, no progress bars
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        os.environ.update(environment)
        os.environ.pop("PARLEY_STORE", None)
        # On a busy machine Matplotlib warns, once, that building its font cache takes a while: not in a cell.
        subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=True, capture_output=True)
        settings = {"startup_timeout": 300, "timeout": 900, "record_timing": False, "coalesce_streams": True}
        NotebookClient(notebook, **settings).execute(cwd=str(folder))
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":  # how a run went on depends on how busy the machine was
                output["text"] = re.sub(r"^.*: round \d+/\d+ · .*\n", "", output["text"], flags=re.MULTILINE)
            if picture := output.get("data", {}).get("image/png"):
                output["data"]["image/png"] = _smaller(picture)
    text = nbformat.writes(notebook)
    if leaked := [path for path in (temporary, str(ROOT), str(Path.home())) if path in text]:
        raise SystemExit(f"{path.name} shows {leaked[0]}, which exists on this machine only.")
    return notebook


def _smaller(picture: str) -> str:
    target = io.BytesIO()
    flat = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    flat.quantize(COLOURS).save(target, format="png", optimize=True)
    return base64.b64encode(target.getvalue()).decode()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Execute the tutorials.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=TUTORIALS)
    asked = parser.parse_args()
    for name in asked.names or sorted(path.stem for path in TUTORIALS.glob("*.ipynb")):
        nbformat.write(executed(TUTORIALS / f"{name}.ipynb"), asked.out / f"{name}.ipynb")
        print(name)
