"""Files that are either there whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, flush to disk, then move into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
