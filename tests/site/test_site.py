"""The site that ``./run docs`` built: whole, and without anything from another host."""

import html
import importlib
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from seqplan.api.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}
"""Element → its attribute by which a browser loads a resource."""


class Page(HTMLParser):
    """What a page loads, links to and offers as anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the element's addresses and its anchor."""
        values = dict(attrs)
        if tag in LOADED and (address := values.get(LOADED[tag])):
            self.loaded.append(address)
        if tag == "a" and (address := values.get("href")):
            self.links.append(address)
        if values.get("id"):
            self.anchors.add(str(values["id"]))


@pytest.fixture(scope="module")
def site() -> Path:
    """The folder of the site."""
    folder = ROOT / "out" / "site"
    assert (folder / "index.html").is_file(), "./run docs builds it"
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """The site's pages by their files."""
    return {path: Page(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_nothing_is_loaded_from_another_host(site: Path, pages: dict[Path, Page]) -> None:
    assert len(pages) > 20
    foreign = [
        f"{path.name}: {address}"
        for path, page in pages.items()
        for address in page.loaded
        if re.match(r"([a-z]+:)?//", address) and not address.startswith("data:")
    ]
    assert foreign == []
    for path in [*pages, *site.rglob("*.css")]:
        styles = path.read_text("utf-8")
        assert not re.search(r"""(url\(\s*["']?|@import\s+["'])(https?:)?//""", styles), path.name


def test_every_link_has_a_target(site: Path, pages: dict[Path, Page]) -> None:
    lost = []
    for path, page in pages.items():
        for link in page.links:
            address, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:", address):
                continue
            target = (path.parent / address).resolve() if address else path
            resolves = target.is_file() and (
                not anchor or target not in pages or anchor in pages[target].anchors
            )
            if not resolves:
                lost.append(f"{path.name}: {link}")
    assert lost == []


def visible(path: Path) -> str:
    """The text of a page, without markup."""
    return html.unescape(re.sub(r"<[^>]+>", "", path.read_text("utf-8")))


def test_every_command_is_in_the_reference(site: Path) -> None:
    text = visible(site / "command-line.html")
    assert [name for name in COMMANDS if f"usage: seqplan {name} " not in text] == []


def test_every_route_is_in_the_reference(
    site: Path, pages: dict[Path, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(DOCS)
    paths = importlib.import_module("generate").read_openapi()["paths"]
    text = visible(site / "rest.html")
    routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert len(routes) > 20
    assert [route for route in routes if route not in text] == []


def test_every_public_name_is_in_the_reference(
    site: Path, pages: dict[Path, Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(DOCS)
    text = visible(site / "api.html")
    for face in importlib.import_module("generate").FACES:
        names = getattr(importlib.import_module(face), "__all__", ())
        assert [name for name in names if not re.search(rf"\b{name}\b", text)] == [], face
    documented = pages[site / "api.html"].anchors
    assert {"seqplan.Planner", "seqplan.balance", "seqplan.runtime.run_step"} <= documented


def test_generated_parts_have_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    sources = "".join(path.read_text("utf-8") for path in DOCS.glob("*.md"))
    marks = re.findall(r"^<!-- generated: (\w+) -->$", sources, re.MULTILINE)
    assert sorted(marks) == sorted(importlib.import_module("generate").PARTS)
