"""The application that Flower is told to run: at the server it calls `serverapp`, at nodes nothing of it is used."""

from __future__ import annotations

from pathlib import Path

from parley.core.files import write_atomically

FOLDER = "PARLEY_DEPLOYMENT"
"""The environment variable that names the server's folder."""
_APP = {
    "pyproject.toml": """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "parley-deployment"
version = "1.0.0"
description = "Nodes of Parley run nothing of this."
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "parley"

[tool.flwr.app.components]
serverapp = "parley_app.server:app"
clientapp = "parley_app.client:app"

[tool.flwr.app.config]
submission = ""
""",
    "parley_app/__init__.py": "",
    "parley_app/server.py": "import parley.deploy.serverapp as inside\n\napp = inside.server_app()\n",
    "parley_app/client.py": "import flwr.clientapp as flower\n\napp = flower.ClientApp()\n",
}


def write_app(folder: Path) -> Path:
    """The application that Flower is told to run; all it does is to call `server_app`."""
    for name, text in _APP.items():
        write_atomically(folder / name, text.encode())
    return folder
