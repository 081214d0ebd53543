"""A stored study written as a file is the same study."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import parley as pl
from parley.study.toml import to_toml

TABLES = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.recursive(
        st.booleans()
        | st.integers(-(2**62), 2**62)
        | st.floats(allow_nan=False)
        | st.text(st.characters(exclude_categories=("Cs",)), max_size=12),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        max_leaves=8,
    ),
    max_size=5,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no mistake
@given(TABLES)
def test_whatever_is_written_is_read_back(table: dict) -> None:
    kept = {key: value for key, value in table.items() if key not in ("data_fingerprint", "plugin_digests")}
    assert tomllib.loads(to_toml(kept)) == kept


@pytest.mark.parametrize("seed", [0, 3])
def test_a_study_written_and_loaded_has_the_same_fingerprint(tmp_path: Path, seed: int) -> None:
    study = pl.load_study(Path("examples/digits.toml"), [f"seed={seed}"])
    text = to_toml(study.resolved())
    (tmp_path / "again.toml").write_text(text)
    again = pl.load_study(tmp_path / "again.toml")
    assert again.fingerprint() == study.fingerprint()
