"""The pages: links lead somewhere, and everything that people can reach is in them."""

import ast
import io
import json
import re
import tomllib
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from benchmarks.run import BENCHMARKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
NAMES = [page.name for page in PAGES]
MOST_LINES = 120

FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"out", "build", "dist"}

WORDS = (
    *(
        "form S",
        "fill",
        "tailor",
        "mix",
        "peaked",
        "even",
        "ladder",
        "worth",
        "price",
        "micro-step",
    ),
    *("layout", "sync", "certificate", "candidate", "rank view", "unit", "shard"),
    *("zigzag", "piece", "swap", "rung", "probe", "fleet", "reach", "top up"),
)
"""Words of the code that a newcomer cannot guess."""


def of(page: Path) -> str:
    return page.read_text("utf-8")


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", of(page), flags=re.DOTALL | re.MULTILINE)


def make_anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    return {make_anchor(heading) for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)}


def test_the_readme_is_short() -> None:
    lines = of(ROOT / "README.md").splitlines()
    assert len(lines) <= MOST_LINES
    assert all(lines[:5]), "the problem, in the lines below the title"
    assert lines[5] == ""
    assert lines.index("```python") < 20, "the example, on the first screen"


def list_parts(page: Path) -> list[str]:
    """The sections of the page on gains, and paragraphs and table rows of other pages."""
    if page.name == "does-it-pay.md":
        return re.split(r"^## ", prose(page), flags=re.MULTILINE)
    return [part for block in prose(page).split("\n\n") for part in re.split(r"\n(?=[|-])", block)]


def list_figures(text: str) -> list[str]:
    """Numbers with a decimal point, but for those of code and links."""
    plain = re.sub(r"\]\([^)]*\)|`[^`]*`", "", text)
    return re.findall(r"(?<![\w.])\d+\.\d+(?!\.?\w)", plain)


def is_of(results: list[str], figure: str) -> bool:
    """Whether a figure is one of the results, rounded to its digits."""
    digits = len(figure.partition(".")[2])
    return any(f"{float(result):.{digits}f}" == figure for result in results)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_figures_beside_a_link_are_of_the_results(page: Path) -> None:
    """Next to a link to results, each number stands in the linked section."""
    parts = re.split(r"^#+ (.+)\n", of(DOCS / "figures.md"), flags=re.MULTILINE)[1:]
    sections = {make_anchor(name): text for name, text in zip(parts[::2], parts[1::2], strict=True)}
    stale = []
    for part in list_parts(page):
        linked = re.findall(r"figures\.md#([\w-]+)", part)
        results = list_figures("\n".join(sections[name] for name in linked))
        stale += [figure for figure in list_figures(part) if linked and not is_of(results, figure)]
    assert stale == []


def test_gains_of_the_readme_are_of_the_page_on_gains() -> None:
    page = set(re.findall(r"\b\d\.\d{2,4}\b", of(DOCS / "does-it-pay.md")))
    table = of(ROOT / "README.md").partition("## Does it pay?")[2].partition("\nPredicted")[0]
    gains = set(re.findall(r"\b\d\.\d{2}\b", table))
    assert gains
    assert gains - {f"{float(gain):.2f}" for gain in page} == set()
    assert "| context up to 16K | **none**" in table


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
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|opt)/\S*", of(page)) == []


def test_every_page_is_in_the_readme() -> None:
    text = of(ROOT / "README.md")
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in text] == []


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
    assert sorted(documented - set(BENCHMARKS)) == []
    figures = of(DOCS / "figures.md")
    assert [name for name in BENCHMARKS if f"`./run bench {name}`" not in figures] == []
    for target in BENCHMARKS.values():
        module, _, function = target.partition(".")
        assert f"\ndef {function}(" in of(ROOT / "benchmarks" / f"{module}.py"), target


def test_every_extra_is_explained() -> None:
    project = tomllib.loads(of(ROOT / "pyproject.toml"))["project"]
    page = of(DOCS / "installing.md")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(
        project["optional-dependencies"]
    )


def test_messages_of_troubleshooting_are_of_the_code() -> None:
    """Each literal message, but for its values, stands in one string of a product file."""
    page = of(DOCS / "troubleshooting.md")
    messages = re.findall(r"^\| `([^`]*[a-z] [^`]*)`", page, re.MULTILINE)
    folders = ("api", "costs", "integrations", "planner", "plans", "profiler", "runtime")
    texts = [of(path) for folder in folders for path in (ROOT / folder).rglob("*.py")]
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join([*texts, of(ROOT / "run")]))
    parts = [part.strip() for message in messages for part in message.split("…")]
    assert len(messages) > 8
    assert [part for part in parts if part not in code] == []


HAS_FIX = re.compile(
    r"[.;] \S|\b(must|needs?|requires?|required|at least|at most|go together)\b|[Dd]id you mean"
)
"""A message that states a fix, or the value that is expected."""


def list_raised(path: Path) -> list[str]:
    """Return the messages of the errors that a file raises, with … for their values.

    Without those of an error of the program.
    """
    raised = [node.exc for node in ast.walk(ast.parse(of(path))) if isinstance(node, ast.Raise)]
    return [
        "".join(_parts(error.args[0]))
        for error in raised
        if isinstance(error, ast.Call)
        and error.args
        and ast.unparse(error.func) not in ("AssertionError", "AttributeError")
    ]


def _parts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in _parts(value)]
    if isinstance(node, ast.BinOp):
        return _parts(node.left) + _parts(node.right)
    return ["…"]


def test_messages_of_the_command_line_have_a_fix_or_an_entry() -> None:
    """A message is *problem: value. Fix.*, or Troubleshooting has its cause and fix."""
    page = of(DOCS / "troubleshooting.md")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    codes = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]
    entries = [code.split("…") for code in codes if re.search(r"[A-Za-z]+ [a-z]", code)]
    folders = (ROOT / "api" / "cli", ROOT / "costs", ROOT / "planner", ROOT / "plans")
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    messages = [message for path in files for message in list_raised(path)]
    assert len(messages) > 400
    worded = [message for message in messages if re.search(r"[a-z]{2,} [a-z]", message)]
    assert [
        message
        for message in worded
        if not HAS_FIX.search(message)
        and not any(all(part.strip() in message for part in entry) for entry in entries)
    ] == []
