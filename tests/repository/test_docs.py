"""The pages: links lead somewhere, and everything that people can reach is in them."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import re
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from seqplan.api.cli import COMMANDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
NAMES = [page.name for page in PAGES]
MOST_LINES = 160

FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"out", "build", "dist"}

WORDS = (
    *("form S", "fill", "tailor", "mix", "peaked", "even", "ladder", "worth", "price", "round"),
    *("layout", "sync", "certificate", "candidate", "rank view", "unit", "shard"),
    *("zigzag", "piece", "swap", "rung", "probe", "new_first", "fleet", "reach", "top up"),
)
"""Words of the code that a newcomer cannot guess."""


def of(page: Path) -> str:
    return page.read_text("utf-8")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", of(page), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def generator() -> ModuleType:
    """``docs/generate.py``, which is in no package."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short() -> None:
    assert len(of(ROOT / "README.md").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_resolve(page: Path) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_files_that_are_named_exist(page: Path) -> None:
    codes = [code.split()[0] for code in re.findall(r"`([^`\n]+)`", prose(page)) if code.strip()]
    paths = [code for code in codes if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", code) and "/" in code]
    ours = [path for path in paths if path.split("/")[0] in FOLDERS]
    assert [path for path in ours if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_page_knows_a_machine(page: Path) -> None:
    paths = re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|opt)/\S*", of(page))
    assert paths == []


def test_every_page_is_in_the_readme() -> None:
    text = of(ROOT / "README.md")
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in text] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command(command: str) -> None:
    section = rf"^### {command}\n\n```text\n(.*?)^```$"
    part = re.search(section, of(DOCS / "command-line.md"), re.MULTILINE | re.DOTALL)
    assert part is not None, f"docs/command-line.md has no section {command}: run docs/generate.py"
    assert normalize(part[1]) == normalize(generator().help_of(command)), "run docs/generate.py"


def normalize(text: str) -> str:
    """Help without what differs between releases of Python: line breaks, a repeated value."""
    return re.sub(r"(-\w) (\S+), (--[\w-]+ \2)", r"\1, \3", " ".join(text.split()))


def test_every_route_of_the_service() -> None:
    page = of(DOCS / "service.md")
    generate = generator()
    paths = generate.openapi()["paths"]
    assert len(paths) > 20
    for path, methods in paths.items():
        for method in methods:
            assert f"`{method.upper()} {path}`" in page, "run docs/generate.py"


def test_every_public_name() -> None:
    generate = generator()
    text = "".join(map(of, PAGES[1:]))
    missing = []
    for face in generate.FACES:
        names = getattr(importlib.import_module(face), "__all__", ())
        missing += [f"{face}.{name}" for name in names if not re.search(rf"`{name}\b", text)]
    assert missing == [], "run docs/generate.py"


@pytest.mark.parametrize("part", ["routes", "names"])
def test_generated_parts_are_of_this_code(part: str) -> None:
    generate = generator()
    text = of(DOCS / generate.PARTS[part][0])
    assert generate.written(part, text) == text, "run docs/generate.py"


def test_the_words_of_the_code_are_explained() -> None:
    glossary = of(DOCS / "algorithms.md").partition("## Words of the code")[2]
    terms = " ".join(line.split("|")[1] for line in glossary.splitlines() if line.startswith("|"))
    terms = terms.replace("form C, S, X", "form C, form S, form X")
    assert [word for word in WORDS if word not in terms] == []


def test_anchors_are_githubs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page's `code`, and more\n\n```\n# none\n```\n## Eq. 1–4\n", "utf-8")
    assert anchors(page) == {"a-pages-code-and-more", "eq-14"}


def test_the_code_of_the_plan_format_runs() -> None:
    golden = ROOT / "tests" / "plans" / "golden" / "heterogeneous.jsonl"
    text = of(DOCS / "plan-format.md")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (code,) = (block for block in blocks if "out/plans.jsonl" in block)  # others: test_export
    names: dict[str, Any] = {}
    exec(code.replace("out/plans.jsonl", str(golden)).replace("rank=17", "rank=0"), names)
    assert names["share"].ranges
    (line,) = re.findall(r'^python -c "(.*)"$', text, re.MULTILINE)
    with redirect_stdout(io.StringIO()) as stdout:
        exec(line, {})
    assert set(json.loads(stdout.getvalue())["properties"]) == set(
        re.findall(r"^\| `(\w+)` \|", text.partition("A pipeline:")[0], re.MULTILINE)
    )


def test_every_benchmark_of_a_figure_exists_and_is_documented() -> None:
    documented = set(re.findall(r"\./run bench (\w+)", "".join(map(of, PAGES)))) - {"NAME"}
    assert [name for name in documented if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []
    known = re.search(r"NAMES = \((.*?)\)", of(ROOT / "benchmarks" / "run.py"), re.DOTALL)
    assert known is not None
    figures = of(DOCS / "figures.md")
    names = re.findall(r'"(\w+)"', known[1])
    assert [name for name in names if f"`./run bench {name}`" not in figures] == []


def test_every_extra_is_explained() -> None:
    project = tomllib.loads(of(ROOT / "pyproject.toml"))["project"]
    table = of(DOCS / "command-line.md").partition("## Installing")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == set(
        project["optional-dependencies"]
    )
