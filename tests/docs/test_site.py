"""The site builds without a warning, and a phone can read it."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote

import pytest

import parley
from parley.runtimes.protocol import runtimes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path):
    """As `make docs` does, which runs before a change lands."""
    pytest.importorskip("sphinx")
    pytest.importorskip("furo")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "api" / "algorithms.html").read_text(encoding="utf-8")
    assert "parley.FedAvg" in page
    assert (tmp_path / "algorithms" / "scaffold.html").is_file()
    followed = follow(tmp_path / "index.html")
    unlinked = {path.stem for path in tmp_path.rglob("*.html") if path not in followed and "_static" not in path.parts}
    assert unlinked <= {"search", "genindex"}


def follow(start: Path) -> dict[Path, set[str]]:
    """Every page that links from the first one lead to, with its anchors. A link within the site that breaks fails."""
    anchors: dict[Path, set[str]] = {}
    wanted, links = [start], list[tuple[Path, str, Path]]()
    while wanted:
        if (page := wanted.pop()) in anchors:
            continue
        text = page.read_text(encoding="utf-8")
        anchors[page] = set(re.findall(r'id="([^"]+)"', text))
        for link in re.findall(r'<a\s[^>]*href="(?![a-z]+:)([^"]+)"', text):
            file, _, anchor = unquote(unescape(link)).partition("#")
            target = (page.parent / file).resolve() if file else page
            assert target.exists(), f"{page.name}: {link}"
            if target.suffix == ".html":
                wanted.append(target)
                links.append((page, anchor, target))
    for page, anchor, target in links:
        assert not anchor or anchor in anchors[target], f"{page.name}: {target.name}#{anchor}"
    return anchors


def test_the_reference_has_every_public_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import make_api

    rooms = {name for name, home in parley._HOME.items() if home == "parley"}
    listed = {name for room in make_api.ROOMS for name in make_api.names_of(room)}
    assert set(parley.__all__) - rooms - {"__version__"} <= listed
    assert rooms - {"theory", "runtimes"} <= set(make_api.ROOMS)


def test_docstrings_become_markup(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from docstrings import markup

    made = markup(["Sends `x`, |y| and a_ * b.", "", "    x <- x - y", "", "- one", "  more of it", "", "End."])
    assert made == [
        "Sends ``x``, \\|y\\| and a\\_ \\* b.",
        "",
        "::",
        "",
        "        x <- x - y",
        "",
        "- one",
        "  more of it",
        "",
        "End.",
        "",
    ]


def test_every_page_is_in_the_index_once():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    pages = sorted(page.stem for page in DOCS.glob("*.md") if page.stem != "index")
    pages += [f"tutorials/{page.stem}" for page in sorted((DOCS / "tutorials").glob("*.ipynb"))]
    listed = re.findall(
        r"^([a-z][\w/-]*)$", "\n".join(re.findall(r"```{toctree}(.*?)```", index, re.DOTALL)), re.MULTILINE
    )
    assert sorted(listed) == sorted([*pages, "api/index"])


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_what_a_page_of_the_root_links_to_is_there(page: str):
    text = (DOCS.parent / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)[^)]*\)|src=\"([^\"]+)\"", text.replace("\n", " "))
    local = [link or picture for link, picture in links if not link.startswith("http")]
    assert [link for link in local if not (DOCS.parent / link).exists()] == []


def test_readme_and_changelog_fit_a_screen():
    assert len((DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= 70
    release = (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1]
    assert len(release.splitlines()) <= 45


def test_the_page_of_commands_is_in_step_with_their_help():
    made = runpy.run_path(str(DOCS / "make_commands.py"))
    assert (DOCS / "commands.md").read_text(encoding="utf-8") == made["page"](), "run python docs/make_commands.py"


def test_every_room_is_in_contributing():
    """With those of runtimes, which are what a user chooses from."""
    rooms = dict(re.findall(r"^\| (`.*`) \| (.*) \|$", (DOCS.parent / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    named = {name for cell in rooms for name in re.findall(r"`(\w+)/`", cell)}
    house = Path(parley.__file__).parent
    assert named == {room.name for room in house.iterdir() if (room / "__init__.py").is_file()}
    assert all(name in rooms["`runtimes/`"] for name in runtimes)
