"""The site: the reference has every public name, links lead somewhere, nothing is fetched from the network."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
import yaml
from blocks import ROOT
from browser import CHROMIUM, browsing

import leanformer as lf
from leanformer import _public

pytest.importorskip("mkdocs")
pytest.importorskip("latex2mathml")
from docs.build_site import ROOMS, commands_page, mathml, public_names, room_page
from docs.griffe_doctests import fenced


def test_the_reference_has_every_public_name():
    page = room_page("leanformer")
    missing = [name for name in _public.__all__ if f"lf.{name}" not in page]
    assert not missing
    assert set(dir(lf)) == set(public_names("leanformer"))


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "leanformer"])
def test_the_reference_has_every_name_of_a_room(room):
    page, names = room_page(room), public_names(room)
    assert names
    assert not [name for name in names if f".{name}" not in page]


def test_every_room_that_is_public_has_a_page():
    rooms = {value.__name__ for _, value in public_names("leanformer").values() if hasattr(value, "__path__")}
    assert rooms <= {f"leanformer.{room}" for room in ROOMS} | {"leanformer.papers.recipes"}


def test_the_page_of_commands_has_every_verb():
    from leanformer.cli import VERBS

    page = commands_page()
    assert all(f"## leanformer {verb}\n" in page for verb in VERBS)
    assert "\x1b" not in page


def test_equations_need_no_script():
    assert mathml("a^2\n\nb").count("<math ") == 2


def test_examples_in_docstrings_are_blocks_of_code():
    assert fenced("Adds.\n\n>>> a[0](1)\n2") == "Adds.\n\n```pycon\n>>> a[0](1)\n2\n```"


def test_nothing_on_the_site_is_fetched_from_the_network():
    settings = (ROOT / "mkdocs.yml").read_text()
    theme = yaml.safe_load(re.sub(r"!!python/name:\S+", "x", settings))["theme"]
    assert theme["font"] is False
    for path in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.css")]:
        if path.name not in ("results.md", "papers.md"):
            fetched = re.findall(r"<(?:script|link|img|iframe)[^>]*https?://|url\(\s*['\"]?https?://", path.read_text())
            assert not fetched, path


def test_every_page_is_in_the_navigation():
    settings = (ROOT / "mkdocs.yml").read_text()
    written = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert not [page for page in written if page not in settings]


def test_the_readme_is_short_and_links_to_files_that_are_there():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 120
    for link in re.findall(r"\]\((?!http|#)([^)#]+)", text) + re.findall(r'src="(?!http)([^"]+)"', text):
        assert (ROOT / link).exists(), link


def test_numbers_have_a_file_that_is_there():
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for name in re.findall(
            r"`(?:results/)?((?:suite|study|bench|lean_plans|export|serve)_\w+\*?\w*\.json)`", path.read_text()
        ):
            assert list((ROOT / "results").glob(name)), f"{path.name} names {name}"


def test_what_the_docs_are_built_with_is_an_extra():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = " ".join(extras["docs"])
    assert all(package in named for package in ("mkdocs-material", "mkdocstrings", "latex2mathml"))


@pytest.mark.exhaustive
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=_environment(), timeout=900)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    page = (tmp_path / "site" / "index.html").read_text()
    assert "https://fonts" not in page
    if CHROMIUM is not None:
        _search(tmp_path, (tmp_path / "site" / "index.html").as_uri())


def _search(folder, address):
    """Search finds a page in a site opened from a folder, and nothing asks the network."""
    typed = "const i = document.querySelector('.md-search__input'); i.focus(); i.value = 'keep rate';"
    with browsing(folder / "profile") as browser:
        browser.open(address)
        browser.ask(f"(() => {{ {typed} i.dispatchEvent(new KeyboardEvent('keyup', {{bubbles: true}})); }})()")
        browser.until("document.querySelectorAll('.md-search-result__item').length > 0")
        asked = [m["params"]["request"]["url"] for m in browser.messages if m["method"] == "Network.requestWillBeSent"]
    assert asked
    assert not [url for url in asked if url.startswith("http")]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "NO_MKDOCS_2_WARNING": "1"}
