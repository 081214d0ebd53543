"""What is shipped: wheel and sdist install and run elsewhere, citation and container file are in step."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import parley

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DATA = (".toml", ".txt", ".json", ".css", ".js", ".html", ".pyi", ".typed")


def run(*words: object, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PARLEY_STORE")}
    done = subprocess.run(
        [str(w) for w in words], cwd=cwd, env=clean | more, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors", "version"} <= set(citation)
    assert citation["version"] == parley.__version__
    assert PROJECT["dynamic"] == ["version"]  # taken from the package
    assert citation["license"] == PROJECT["license"]


def test_the_floors_job_has_what_its_tests_need():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["floors"]["steps"] if "run" in step]
    (installed,) = (command.split() for command in commands if "pip install" in command)
    assert {"pytest", "pytest-timeout", "pytest-xdist", "hypothesis"} <= set(installed)
    (folders,) = (re.findall(r"tests/\w+", command) for command in commands if "pytest -n" in command)
    assert {"tests/runtimes", "tests/training"} <= set(folders)
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_extras_are_installed_in_one_way_from_a_checkout_and_exist():
    texts = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    texts += [*(ROOT / "examples").rglob("*.py"), *(ROOT / "examples").rglob("*.toml"), ROOT / "parley/core/extras.py"]
    for package in ("parley", "parley_papers", "parley_benchmarks"):
        texts += (ROOT / package).rglob("*.py")
    for path in texts:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"parley-fl\[", text), path
        for command, extras in re.findall(r"(pip install[^\n`\"]*?)\[([a-z,]+)\]", text):
            assert command == "pip install -c constraints.txt '.", path
            assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"]), path


def test_the_container_file_is_pinned_and_not_root():
    text = (ROOT / "Containerfile").read_text(encoding="utf-8")
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    torch = next(line for line in pins.splitlines() if line.startswith("torch=="))
    assert torch in text
    assert "constraints.txt" in text
    bases = {line.split()[1] for line in text.splitlines() if line.startswith("FROM")}
    (base,) = bases  # what is built in is what is run in
    assert base.partition(":")[2].count(".") == 2
    assert "[flower,privacy]" in text
    assert "://" not in text  # whoever builds it says where packages come from, if not from pip's own index
    assert text.index("USER parley") < text.index("ENTRYPOINT")
    named = [
        word
        for line in text.splitlines()
        if line.startswith("COPY") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    assert all((ROOT / word).exists() for word in named)


@pytest.mark.slow
def test_the_container_builds_and_runs(tmp_path: Path):
    engine = shutil.which("podman") or shutil.which("docker")
    if engine is None or subprocess.run([engine, "info"], capture_output=True, timeout=60).returncode:
        pytest.skip("needs Docker or Podman with a running engine")
    built = subprocess.run(
        [engine, "build", "-q", "-f", "Containerfile", "-t", "parley-test", "."],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    if built.returncode and any(word in built.stderr for word in ("resolve", "network", "timeout", "TLS", "lookup")):
        pytest.skip("the base image cannot be fetched here")
    assert built.returncode == 0, built.stderr
    assert "✓ packages" in run(engine, "run", "--rm", "parley-test", "doctor", cwd=tmp_path).stdout
    assert run(engine, "run", "--rm", "--entrypoint", "id", "parley-test", "-u", cwd=tmp_path).stdout.strip() == "10001"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, made from the files that git knows, and the wheel, made from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, source / name)
    backend = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
    run(sys.executable, "-c", backend, "build_sdist", folder, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run(sys.executable, "-c", backend, "build_wheel", folder, cwd=unpacked)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


@pytest.mark.slow
def test_the_wheel_has_every_file(shipped: tuple[Path, Path]):
    with zipfile.ZipFile(shipped[1]) as archive:
        names = set(archive.namelist())
    wanted = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "parley").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix in (*DATA, ".py", ".txt")
    }
    assert wanted - names == set()
    assert not any(name.startswith(("tests/", "docs/")) for name in names)


@pytest.mark.slow
def test_the_wheel_runs_in_an_environment_of_its_own(shipped: tuple[Path, Path], tmp_path: Path):
    """Installed without its dependencies, which a path lends it from here: only Parley itself is new."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        shipped[1],
        cwd=tmp_path,
    )
    (site,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    lent = tmp_path / "lent"
    lent.mkdir()
    for place in Path(sysconfig.get_path("purelib")).iterdir():
        if "parley" not in place.name:
            (lent / place.name).symlink_to(place)
    (site / "lent.pth").write_text(f"{lent}\n")
    work = tmp_path / "work"
    work.mkdir()
    found = run(python, "-c", "import parley; print(parley.__file__)", cwd=work).stdout
    assert str(tmp_path / "env") in found
    program = tmp_path / "env" / "bin" / "parley"
    demo = run(program, "demo", "--rounds", "2", cwd=work).stdout
    assert "parley-demo/report.html" in demo
    assert (work / "parley-demo" / "report.html").stat().st_size > 50_000
    run(program, "new", "algorithm", "mine", cwd=work)
    run(program, "run", "mine.toml", "-q", cwd=work)
    assert "✓ packages" in run(program, "doctor", cwd=work).stdout
    run(program, "list", "algorithms", "fedavg", cwd=work)
    run(program, "reproduce", "001/fig1", "--scale", "smoke", cwd=work)


def test_every_dependency_has_a_floor_that_is_installed_in_ci():
    printed = run(sys.executable, ROOT / ".github" / "floors.py", cwd=ROOT).stdout.split()
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    assert [re.split("[=<>]", line)[0] for line in printed] == [re.split("[=<>]", line)[0] for line in required]
    assert all("==" in line for line in printed)
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert "python .github/floors.py > floors.txt" in workflow
    assert "-c floors.txt" in workflow
