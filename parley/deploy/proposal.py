"""A study as nodes are asked to take part in it: all that decides what they compute, and no path of the server's.

Its hash is what an owner approves: the resolved settings, the version of Parley, the digests of the modules that are
not Parley's, and the roster of the nodes. The modules themselves never travel: an owner puts them into the node's
folder `modules`, where they are found by name and must have the digest. Nothing else on a node's disk or on a hub can
be named: a proposal that tries is refused when it is read, before anything is built from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from parley import __version__
from parley.core.errors import InputError, WireError
from parley.core.plugins import digest_of
from parley.core.text import shown
from parley.data import DataInfo, Federation
from parley.data.ids import NumberedIds
from parley.data.pretrained import refuse_code
from parley.data.sources import Elsewhere
from parley.deploy.roster import check_roster
from parley.study.opaque import is_opaque
from parley.study.sections import plain
from parley.study.study import Study, described_preprocessing
from parley.study.toml import study_from_dict

LARGEST = 1024 * 1024
"""Bytes of a proposal, of which each node of the roster takes about 250."""
_SERVERS = (
    "data",
    "faults",
    "runtime",
    "store",
    "logging",
    "listeners",
    "plugins",
    "plugin_digests",
    "init_from",
    "tune",
)
"""Sections and settings that do not concern nodes."""
_SECTIONS = ("model", "channels", "privacy", "evaluate", "robust", "preprocessing", "cohort")
LONGEST_NAME = 200
"""Characters of a study's name."""
_TEXTS = ("name", "revision", "preprocessing")
"""What holds titles and names of columns, which may look like anything and are never looked up."""
_MODULE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.py")
_IN_MODULE = re.compile(rf"({_MODULE.pattern}):[A-Za-z_]\w*(\([^:/\\]*\))?", re.ASCII)
"""A thing in a module: `mine.py:Mine`, or a channel with its values."""
_ELSEWHERE = re.compile(r"[/\\\0]|^\s*[~.]|\.py\s*(:|$)|\.(safetensors|bin|pt|pth|pkl|json|toml)\s*$", re.IGNORECASE)
"""What paths, names on a hub and things in files look like."""
_STAND_IN = {"name": "iris", "clients": 1}


@dataclass(frozen=True)
class Proposal:
    """What nodes are asked to take part in."""

    parley: str
    study: Mapping[str, Any]
    modules: Mapping[str, str]
    """File name -> digest of its content."""
    roster: Mapping[str, str] = field(default_factory=dict)
    """Name -> public key of the nodes that may take part; nothing where the server does not say."""

    @classmethod
    def of(cls, study: Study, roster: Mapping[str, str] | None = None) -> Proposal:
        """From a study at the server, and the nodes that are registered there."""
        modules = {Path(path).name: digest_of(path) for path in study.plugins}
        if len(modules) < len(study.plugins):
            raise InputError("two modules of the study have the same file name; rename one of them.")
        anybody = Federation(DataInfo("deployment", (1,), 1, "classification"), NumberedIds(10**6), Elsewhere())
        table = replace(study, data=anybody, privacy=None, preprocessing=None, data_fingerprint=None).resolved()
        # What follows from the data is left open: nobody knows them yet.
        table["loss"] = table["loss"] if study.loss is not None else None
        if study.privacy is not None:
            table["privacy"] = plain(study.privacy)
        if study.preprocessing is not None:
            table["preprocessing"] = described_preprocessing(study.preprocessing)
        kept = {name: value for name, value in table.items() if name not in _SERVERS}
        _refuse_python(kept, "the study")
        if study.start is not None and "algorithm" in study.start.described():
            raise InputError("nodes train with one method: init_from.algorithm is for simulations.")
        kept = _without_paths(kept, {str(p): Path(p).name for p in study.plugins})
        _check_names(kept, modules)
        if len(study.name) > LONGEST_NAME:
            raise InputError(f"the study's name has more than {LONGEST_NAME} characters, which nodes refuse.")
        return cls(__version__, kept, modules, dict(roster or {}))

    @classmethod
    def read(cls, text: bytes) -> Proposal:
        """From bytes that anybody may have sent; a WireError says what is wrong with them."""
        if len(text) > LARGEST:
            raise WireError(f"a proposal of {len(text)} bytes is over the limit of {LARGEST}.")
        try:
            fields = json.loads(text)
            made = cls(
                str(fields["parley"]), dict(fields["study"]), dict(fields["modules"]), dict(fields.get("roster", {}))
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            raise WireError("it is no proposal of a study.") from None
        for name, digest in made.modules.items():
            if _MODULE.fullmatch(str(name)) is None or not isinstance(digest, str):
                raise WireError("it names modules in a way that cannot be.")
        check_roster(made.roster)
        for section in _SERVERS:
            if section in made.study:
                raise WireError(f"its study has '{section}', which does not concern nodes.")
        _check_sections(made.study)
        try:
            _check_names(made.study, made.modules)
        except InputError as error:
            raise WireError(str(error)) from None
        except RecursionError:
            raise WireError("it is nested too deeply.") from None
        return made

    def bytes(self) -> bytes:
        """The canonical form: the same proposal gives the same bytes."""
        whole: dict[str, Any] = {"parley": self.parley, "study": self.study, "modules": self.modules}
        if self.roster:
            whole["roster"] = self.roster
        return json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @property
    def hash(self) -> str:
        return sha256(self.bytes()).hexdigest()

    @property
    def lineage(self) -> str:
        """The same for a study that goes on for more rounds, whoever has been registered since."""
        rest = {name: value for name, value in self.study.items() if name not in ("name", "rounds")}
        return replace(self, study=rest, roster={}).hash

    @property
    def title(self) -> str:
        return str(self.study.get("name") or self.algorithm)

    @property
    def algorithm(self) -> str:
        return str(dict(self.study.get("algorithm") or {}).get("name", "?"))

    @property
    def model(self) -> str | None:
        """None for methods that train no network."""
        described = self.study.get("model")
        return None if described is None else str(dict(described).get("name", "?"))

    @property
    def rounds(self) -> int:
        return int(self.study["rounds"])

    @property
    def evaluates(self) -> bool:
        """Whether models are judged on nodes' held-out samples."""
        return bool(dict(self.study.get("evaluate") or {}).get("clients", "auto") != "none")

    @property
    def channels(self) -> list[str]:
        """The names of the channels of its replies."""
        up = dict(self.study.get("channels") or {}).get("up", [])
        return [str(text).partition("(")[0].strip() for text in up]

    def rebuilt(self, modules: Path) -> Study:
        """The study at a node, with data that stand for others; its modules are those of the node's owner."""
        for name, digest in self.modules.items():
            path = modules / name
            if not path.is_file():
                raise InputError(
                    f"the study needs the module {name}, which is not in {modules}; its owner can put it there."
                )
            if digest_of(path) != digest:
                raise InputError(f"the module {name} in {modules} is not the one that the study names.")
        # Names of things in modules get the whole path: alone they would be looked for in the working directory.
        table = {
            name: value if name in _TEXTS else _with_paths(value, modules)
            for name, value in self.study.items()
            if not (name == "loss" and value is None)
        }
        study = study_from_dict({**table, "data": _STAND_IN, "plugins": sorted(self.modules)}, modules)
        others = [path for path in study.plugins if Path(path).name not in self.modules]
        if others:
            raise InputError(f"the study names code that its list of modules lacks: {shown(Path(others[0]).name)}.")
        return study


def _without_paths(value: Any, files: Mapping[str, str]) -> Any:
    """Names of things in files with the file's name alone."""
    if isinstance(value, Mapping):
        return {key: _without_paths(inner, files) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_without_paths(inner, files) for inner in value]
    if isinstance(value, str):
        path, colon, thing = value.rpartition(":")
        return f"{files[path]}:{thing}" if colon and path in files else value
    return value


def _with_paths(value: Any, modules: Path) -> Any:
    """Names of things in modules with the folder in which a node has them."""
    if isinstance(value, Mapping):
        return {key: _with_paths(inner, modules) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_with_paths(inner, modules) for inner in value]
    return str(modules / value) if isinstance(value, str) and _IN_MODULE.fullmatch(value) else value


def _check_sections(study: Mapping[str, Any]) -> None:
    """Refuse what could not be listed for an owner beside other studies."""
    rounds, name = study.get("rounds"), study.get("name")
    if type(rounds) is not int or not 1 <= rounds < 2**31:
        raise WireError("the study does not say how many rounds it has.")
    if not isinstance(name, str | None) or len(name or "") > LONGEST_NAME:
        raise WireError(f"the study's name is no text of at most {LONGEST_NAME} characters.")
    for section in ("algorithm", *_SECTIONS):
        if not isinstance(study.get(section), Mapping) and (section == "algorithm" or study.get(section) is not None):
            raise WireError(f"the study has no section [{section}].")
    for section in ("algorithm", "model"):
        if study.get(section) is not None and not isinstance(study[section].get("name"), str):
            raise WireError(f"the study's section [{section}] has no name.")
    up = (study.get("channels") or {}).get("up", [])
    if not isinstance(up, list | tuple) or not all(isinstance(text, str) for text in up):
        raise WireError("the study's channels are no texts.")


def _check_names(study: Mapping[str, Any], modules: Mapping[str, str]) -> None:
    """Refuse names of anything that is neither installed with Parley nor in a module of the list."""
    for key, value in study.items():
        if key not in _TEXTS:
            _check_value(value, str(key), modules)


def _check_value(value: Any, where: str, modules: Mapping[str, str]) -> None:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_value(str(key), where, modules)
            refuse_code({str(key): inner}, where)
            _check_value(inner, f"{where}.{key}", modules)
    elif isinstance(value, tuple | list):
        for inner in value:
            _check_value(inner, where, modules)
    elif isinstance(value, str):
        named = _IN_MODULE.fullmatch(value)
        if named is not None:
            if named[1] not in modules:
                raise InputError(f"{where} names code that the study's list of modules lacks: {shown(named[1])}.")
        elif _ELSEWHERE.search(value) or (where.startswith("model.") and where.endswith(".weights")):
            raise InputError(
                f"{where} = {shown(value)} names a file or something on a hub; a node uses what is installed and its "
                "owner's modules."
            )


def _refuse_python(value: Any, where: str) -> None:
    if is_opaque(value):
        raise InputError(
            f"{where} was made in Python, and nodes take no code from the server: name it in the study file."
        )
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _refuse_python(inner, str(key))
    elif isinstance(value, tuple | list):
        for inner in value:
            _refuse_python(inner, where)
