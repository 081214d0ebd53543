"""The command as its user meets it."""

import pytest

from parley.cli.main import main


@pytest.fixture
def parley(capfd: pytest.CaptureFixture[str]):
    """`parley("run", "study.toml")` gives the exit code and what was printed on both channels."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        shown = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, shown.out, shown.err

    return call
