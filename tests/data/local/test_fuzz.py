"""Mutations of valid files: each loads, or is refused in one sentence."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from parley.core.errors import InputError
from parley.data import DataInfo, Federation
from parley.study.predict import read_inputs

X, Y = np.arange(12.0, dtype=np.float32).reshape(4, 3), np.array([0, 2, 1, 0])
INFO = DataInfo("fuzz", (3,), 3, "classification", columns=("u", "v", "w"))


def _npz(compress: bool) -> bytes:
    buffer = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(buffer, x=X, y=Y)
    return buffer.getvalue()


def _csv() -> bytes:
    rows = [",".join(map(str, [*x, y])) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    return ("u,v,w,y\n" + "\n".join(rows) + "\n").encode()


VALID = {
    "csv": _csv(),
    "stored.npz": _npz(compress=False),
    "packed.npz": _npz(compress=True),
    "safetensors": save({"x": torch.from_numpy(X), "y": torch.from_numpy(Y)}),
}
PIECES = [
    b"", b"\0", b"nan", b"inf", b"-1", b'"', b",", b"\n", b"\r", b"1e400", b"\xff\xfe", b"x", b"-", b"9" * 30,
    b"\x1b[2J", b"(", b"}", b"99999", b"\xef\xbb\xbf", b"PK\x01\x02", b"PK\x05\x06", b"'shape': (", b"<f8", b"|O",
    b"F64", b"[-1]",
]  # fmt: skip
mutation = st.tuples(
    st.floats(0, 1, exclude_max=True), st.integers(0, 12), st.sampled_from(PIECES) | st.binary(max_size=6)
)


def mutated(content: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for share, removed, put in changes:
        place = int(share * (len(content) + 1))
        content = content[:place] + put + content[place + removed :]
    return content


def loads_or_says_why(name: str, content: bytes, folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "a.csv").write_bytes(VALID["csv"])
    file = folder / f"b.{name.split('.')[-1]}"
    file.write_bytes(content)

    def load() -> None:
        federation = Federation.from_folder(folder)
        for id in federation.ids:
            data = federation.client(id)
            assert data.x.shape[1:] == federation.info.shape
            assert data.x.isfinite().all()
            if federation.info.kind == "classification":
                assert 0 <= data.y.min() <= data.y.max() < federation.info.outputs

    for call in (load, lambda: read_inputs(file, INFO)):
        said = ""
        try:
            call()
        except InputError as error:
            said = str(error)
        assert said.isprintable()
        assert not said or said.endswith((".", "?"))
        assert len(said) < 1000


@pytest.mark.parametrize("name", VALID)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(mutation, min_size=1, max_size=4))
def test_mutations(name, changes, tmp_path):
    loads_or_says_why(name, mutated(VALID[name], changes), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", VALID)
@settings(max_examples=4000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(mutation, min_size=1, max_size=6))
def test_many_mutations(name, changes, tmp_path):
    loads_or_says_why(name, mutated(VALID[name], changes), tmp_path)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(member=st.sampled_from(["x", "y"]), changes=st.lists(mutation, min_size=1, max_size=4))
def test_mutations_inside_an_archive_that_is_whole(member, changes, tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(VALID["stored.npz"])) as whole, zipfile.ZipFile(buffer, "w") as other:
        for name in ("x", "y"):
            content = whole.read(f"{name}.npy")
            other.writestr(f"{name}.npy", mutated(content, changes) if name == member else content)
    loads_or_says_why("inside.npz", buffer.getvalue(), tmp_path)
