"""Code of the user's own in one file: a method, model, loss, metric or listener named `moon.py:MOON`.

A file is run once and again only after it has changed. Its code runs with the user's rights, so only name files you
trust, as with any program.
"""

from __future__ import annotations

import sys
from hashlib import blake2b
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from parley.core.errors import InputError

_loaded: dict[Path, tuple[str, ModuleType]] = {}


def is_file_name(name: object) -> bool:
    """Whether a name means a thing in a file: `moon.py:MOON`."""
    return isinstance(name, str) and name.rpartition(":")[0].endswith(".py")


def beside(name: str, base: Path) -> str:
    """The same name with the file's whole path; a relative one is looked for under `base`."""
    path, _, thing = name.rpartition(":")
    return f"{_path(path, base)}:{thing}"


def from_file(name: str) -> Any:
    """The thing that `file.py:thing` names."""
    path, _, thing = name.rpartition(":")
    module = load(path)
    value = getattr(module, thing, None)
    if value is None:
        raise InputError(f"the file {path} defines no '{thing}'.")
    return value


def load(file: Path | str, base: Path | None = None) -> ModuleType:
    """The module in a file; what it registers is there afterwards."""
    path = _path(file, base or Path.cwd())
    try:
        if not path.is_file():
            raise InputError(f"there is no file {path}.")
        source = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"the file {path} cannot be read: {error}.") from None
    digest = _digest(source)
    known = _loaded.get(path)
    if known is not None and known[0] == digest:
        return known[1]
    # One name per file, so that running a changed file again replaces what it registered before.
    name = f"parley_plugin_{path.stem}_{_digest(str(path).encode())[:8]}"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except InputError:
        raise
    except SystemExit as error:
        raise InputError(
            f"the file {path} cannot be run: it ends the program (sys.exit({error.code!r})); do that only "
            'under if __name__ == "__main__".'
        ) from error
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        raise InputError(f"the file {path} cannot be run: {reason}.") from error
    _by_value(module)
    _loaded[path] = (digest, module)
    return module


def digest_of(file: Path | str, base: Path | None = None) -> str:
    """A digest of what is written in the file."""
    try:
        return _digest(_path(file, base or Path.cwd()).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"the file {file} cannot be read: {error}.") from None


def _path(file: Path | str, base: Path) -> Path:
    try:
        return (base / file).resolve()
    except (OSError, ValueError) as error:
        raise InputError(f"'{file}' is no path to a file: {error}.") from None


def _digest(source: bytes) -> str:
    return blake2b(source, digest_size=12).hexdigest()


def _by_value(module: ModuleType) -> None:
    """Worker processes cannot import the file, so its code travels with the job."""
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)
