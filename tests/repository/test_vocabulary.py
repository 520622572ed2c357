"""The code's words: verbs for functions, one class a name, the field's terms in text."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

from folder_graph import ROOT, TOPS

PRODUCT = ("seqplan", *TOPS)

PRIVATE = re.compile(
    r"\b(told|tells?|telling|said|says?|asks?|asked|hears?|heard|lend(s|ing)?|lent|mend(s|ed|ing)?"
    r"|beside|alike|dearer|thrift(y|ily)|dealt|held against|knows? (no|nothing)|own"
    r"|where (it|there|that|this|none|nothing|no|one|they|all|each|both|memory)"
    r"|what (is|was|are|were|has|have)|refus(e|es|ed|al|als))\b",
    re.IGNORECASE,
)
"""Words that engineers of the field have to translate."""

MOST_PRIVATE = {"product": 0, "tests": 0, "pages": 1}
"""How often they occur: never more than when they were last counted."""

PARTICIPLE = re.compile(r"^(?:[a-z]+ed|lent|dealt|told|made|known|held|kept|thrifty|said)$")
VERBS = {"embed", "feed", "need", "seed", "speed", "shed", "exceed", "proceed", "read", "unembed"}
MOST_PARTICIPLES, MOST_LONG = 8, 4
FIRST_SENTENCE = 15
"""Words of a docstring's first sentence, at most."""

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def product_files() -> list[Path]:
    return sorted(path for top in PRODUCT for path in (ROOT / top).rglob("*.py"))


@cache
def definitions() -> list[Definition]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    trees = [ast.parse(path.read_text("utf-8")) for path in product_files()]
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]


TEXTS = (
    "api/rest/payloads/described.json",
    "costs/analytic/validation/figures/tables.toml",
    "plans/format/plan.schema.json",
)
"""Texts of the product in files of data."""


def test_private_words_do_not_grow() -> None:
    files = {
        "product": [*product_files(), *(ROOT / name for name in TEXTS)],
        "tests": [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)],
        "pages": [ROOT / "README.md", *(ROOT / "docs").glob("*.md")],
    }
    counts = {
        kind: sum(len(PRIVATE.findall(path.read_text("utf-8"))) for path in paths)
        for kind, paths in files.items()
    }
    assert {kind: count for kind, count in counts.items() if count > MOST_PRIVATE[kind]} == {}


def is_property(node: Definition) -> bool:
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"property", "cached_property"})


def test_functions_are_verbs() -> None:
    named = [
        node.name
        for node in definitions()
        if not isinstance(node, ast.ClassDef)
        and not is_property(node)
        and PARTICIPLE.match(first := node.name.strip("_").split("_")[0])
        and first not in VERBS
    ]
    assert len(named) <= MOST_PARTICIPLES, named


def test_first_sentences_are_short() -> None:
    long = [
        f"{node.name}: {text}"
        for node in definitions()
        if (text := ast.get_docstring(node))
        and len(re.split(r"[.:;]\s|\n\n", text)[0].split()) > FIRST_SENTENCE
    ]
    assert len(long) <= MOST_LONG, long


def test_a_class_name_stands_once() -> None:
    names = Counter(
        node.name
        for node in definitions()
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_percentages_are_written_by_one_function() -> None:
    by_format = [path for path in product_files() if re.search(r"\d%\}", path.read_text("utf-8"))]
    assert by_format == []
