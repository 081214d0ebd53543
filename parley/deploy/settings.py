"""The two files of settings: deploy.toml at the server, node.toml and policy.toml at a node. Written with comments."""

from __future__ import annotations

import json
import textwrap
import tomllib
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from parley.core.errors import InputError, nearest
from parley.core.fields import settings_of, type_text
from parley.core.files import regular_file
from parley.core.text import shown

T = TypeVar("T")
Port = Annotated[int, Field(ge=1, le=65535)]
Above = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class ServerSettings:
    """The server of a deployment."""

    names: tuple[str, ...]
    """Names and addresses under which nodes reach this machine; they stand in its certificate ('parley deploy renew'
    after a change)."""
    bind: str = "0.0.0.0"
    """Address to listen at; 127.0.0.1 for this machine alone."""
    port: Port = 9443
    """The one port that nodes need; all else stays on this machine."""
    health: Port | None = None
    """Port of 127.0.0.1 at which GET /health says how the server is; by default none."""
    certificate_days: Above = 365.0
    """Days for which a new certificate of the server is valid."""
    enrolment: Above = 300.0
    """Seconds within which nodes must answer the invitation to a study; who does not is left out of it."""
    decision: Above = 7 * 86400.0
    """Seconds for which a study waits for owners who have to decide; other studies go on meanwhile."""
    studies: Annotated[int, Field(ge=1)] = 4
    """Most runs that go on, or wait for owners, at the same time; a node answers one message after the other."""
    wait: Above = 900.0
    """Seconds after which an answer is given up in studies that set no faults.deadline."""
    reply_megabytes: Above = 1024.0
    """Largest answer of a node; a larger one is thrown away."""
    restarts: Annotated[int, Field(ge=0)] = 5
    """How often a run that died without a word goes on from its checkpoint before it is given up."""


@dataclass(frozen=True)
class NodeSettings:
    """A node: one owner's data in a federation."""

    name: str
    """What the server calls this node."""
    server: str | None = None
    """The server, as host:port."""
    ca: str | None = None
    """The certificate of the deployment's authority (ca.crt), relative to this folder."""
    key: str = "node.key"
    """The node's private key, relative to this folder."""
    data: str | None = None
    """The samples: a .csv, .parquet, .npz or .safetensors file, a folder of images by class, or file.py:function, which
    returns a data frame or arrays (x, y); relative to this folder."""
    test: str | None = None
    """Held-out samples of the same form, on which models are evaluated here; else test_fraction says how many."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the samples that is held out, by a draw that depends on the name of the node alone."""
    target: str | None = None
    """Of tables: the column to predict; by default the last one."""
    kind: Literal["classification", "regression"] | None = None
    """What targets are; by default whole numbers and texts are classes, other numbers are not."""
    dtype: Literal["float32", "float64"] | None = None
    """The precision of inputs; by default arrays keep theirs and tables are float32, or refused where that
    cannot tell a column's numbers apart."""
    missing: bool = False
    """Empty cells and NaN are missing values, which statistics and boosted trees take; else they are refused."""
    categories: tuple[str, ...] = ()
    """Of tables: the columns that hold texts, or numbers that are names; what studies make of them, they say."""
    dates: tuple[str, ...] = ()
    """Of tables: the columns that hold dates or times, YYYY-MM-DD."""
    on_error: Literal["refuse", "skip"] = "refuse"
    """What is done about rows of tables that cannot be read; skipped ones are counted and listed here alone."""
    party: str | None = None
    """The party of a method that this node is, such as "shuffler" or "key server"; it has keys and no data."""
    health: Port | None = None
    """Port of 127.0.0.1 at which GET /health says how the node is; by default none."""
    hours: Above = 24.0
    """Hours that one answer may take; then it is given up, and the log says so. A server could ask for endless ones."""
    threads: Annotated[int, Field(ge=1)] = 1
    """Threads that training may use; other numbers than 1 may round differently."""


@dataclass(frozen=True)
class PolicySettings:
    """What this node answers without asking its owner; a study must keep to all of it. As it is, nothing."""

    algorithms: tuple[str, ...] = ()
    """Methods by name, such as "fedavg"; "*" for any that sends no samples."""
    models: tuple[str, ...] = ()
    """Models by name, such as "mlp"; "*" for any of Parley's own."""
    channels: tuple[str, ...] = ()
    """Channels that a study may use, by name; a study without channels needs none of them. "*" for any."""
    required_channels: tuple[str, ...] = ()
    """Channels that a study must use, at least as strict as here: "clip(1.0)" for a norm of at most that, "noise(0.5)"
    for at least that deviation, "secure-sum" or "secure-sum(24, 8.0, 0.7, 3)" for that share and number of clients.
    Only [privacy] accounts for what they hide (see epsilon)."""
    rounds: Annotated[int, Field(ge=0)] = 0
    """Most rounds of a study; 0 approves nothing."""
    epsilon: Above | None = None
    """Only studies with [privacy] whose rounds cost at most this epsilon, as this node computes it from their noise."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-3
    """Largest delta of such a study, and of one with local noise."""
    total_epsilon: Above | None = None
    """Most epsilon of all runs together that are approved here in advance; further ones ask the owner."""
    runs: Annotated[int, Field(ge=0)] = 10
    """Most runs that are approved here in advance, of all studies together; further ones ask the owner."""
    local_noise: bool = False
    """Only studies whose noise is added here, before anything is sent (privacy.noise = "local")."""
    pooled: bool = False
    """Answer evaluations with counts of scores by class, too (evaluate.pooled): where a bin holds one sample, its score
    and class."""
    evaluation: bool = True
    """Also answer how well models do on the held-out samples."""
    minimum_floor: Annotated[int, Field(ge=1)] = 10
    """Of statistics only those that tell nothing which fewer samples of this node than so many stand behind."""
    minimum_samples: Annotated[int, Field(ge=0)] = 0
    """Answer nothing, approved or not, while there are fewer training samples than this."""
    approval_days: Above = 90.0
    """Days after which an approval that no run has begun under ends, and a run is answered no more."""
    minimum_held_out: Annotated[int, Field(ge=1)] = 10
    """Evaluate nothing, approved or not, on fewer held-out samples than this; the node trains without."""
    minimum_nodes: Annotated[int, Field(ge=0)] = 0
    """Answer nothing, approved or not, in studies whose roster has fewer nodes than this."""
    peers: tuple[str, ...] = ()
    """Fingerprints of the other nodes' keys, as their owners read them out; then no other ones count for minimum_nodes,
    and a study without a roster is refused, one whose roster has others not approved in advance."""


def read_settings(cls: type[T], path: Path, what: str) -> T:
    """The settings in a file; an InputError says what is wrong with it."""
    try:
        table = tomllib.loads(regular_file(path, what).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{what} '{shown(path)}' is not valid TOML: {str(error).rstrip('.')}.") from None
    known = {setting.name: setting for setting in settings_of(cls)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in known:
            raise InputError(f"{path} has no setting '{shown(name)}': {nearest(name, known)}")
        hint = known[name].hint
        try:
            values[name] = TypeAdapter(hint).validate_json(json.dumps(value), strict=True)
        except (TypeError, ValueError):
            raise InputError(f"{name} in {path} must be {type_text(hint)}, not {shown(value)}.") from None
    missing = next((name for name, field in known.items() if field.required and name not in values), None)
    if missing is not None:
        raise InputError(f"{path} does not say {missing}, which must be {type_text(known[missing].hint)}.")
    return cls(**values)


def commented(cls: type[Any], **values: Any) -> str:
    """A file with all settings of a class, each below what it means; those without a value are commented out."""
    lines = [f"# {line}" for line in textwrap.wrap(" ".join((cls.__doc__ or "").split()), 100)]
    for setting in settings_of(cls):
        lines += ["", *[f"# {line}" for line in textwrap.wrap(" ".join(setting.doc.split()), 100)]]
        value = values.get(setting.name, None if setting.default is MISSING else setting.default)
        blank = f"# {setting.name} = " + ("9444" if setting.name == "health" else '""')
        lines.append(blank if value is None else f"{setting.name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
