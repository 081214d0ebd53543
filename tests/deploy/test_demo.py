"""`parley deploy demo` as its user meets it: a server and three hospitals as processes over TLS."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parley.cli.main import main
from parley.deploy.demo import HOSPITALS
from parley.deploy.node_folder import NodeFolder
from parley.deploy.server_folder import ServerFolder
from parley.deploy.submissions import Submissions


@pytest.mark.long  # a minute of three processes' starts: beside fewer tests
@pytest.mark.timeout(900)
def test_three_hospitals_agree_train_and_log_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        main(["deploy", "demo", str(tmp_path)])
    said = capfd.readouterr().out
    assert ended.value.code == 0, said
    for name in HOSPITALS:
        assert f"{name}: study" in said
        assert f"{name} enrolled with 96 samples." in said
        asked = [line.get("asked") for line in NodeFolder.open(tmp_path / name).logged() if line["event"] == "message"]
        assert asked.count("client") == 3
        assert asked.count("evaluation") == 2
    assert "round 3: asked 3, answered 3" in said
    (one,) = Submissions(ServerFolder.open(tmp_path / "server")).all()
    assert (one.status, one.attempts) == ("finished", 1)
    after = re.search(r"([\d.]+)% after", said)
    assert after is not None
    assert float(after[1]) >= 95
