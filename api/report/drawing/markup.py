"""HTML from Python values: everything that is text is escaped, every element is closed."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)

LONG_TABLE = 40
"""Rows from which a table starts closed, and is not printed unless it was opened."""

SHORT_TABLE = 16
"""Rows up to which a table starts open."""

NAME = 14
"""Characters from which the first cell of a row gets room to break into few lines."""


def text(value: object) -> str:
    """A value as escaped text; what no document may contain is shown as the replacement sign."""
    return html.escape(_UNPRINTABLE.sub("\ufffd", str(value)), quote=True)


def element(name: str, /, *children: str, **attributes: object) -> str:
    """``<name attributes>children</name>``; ``children`` are markup, attribute values text.

    ``class_`` is written ``class`` and ``aria_label`` ``aria-label``; attributes of None are left
    out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(children)}</{name}>"


def section(ident: str, heading: str, sentence: str, *parts: str) -> str:
    """A part of the report: a heading, one sentence on what it shows, figures and tables."""
    return element(
        "section",
        element("h2", text(heading), id=f"{ident}-heading"),
        lead(sentence),
        *parts,
        id=ident,
        aria_labelledby=f"{ident}-heading",
    )


def lead(sentence: str) -> str:
    """A sentence on what follows."""
    return element("p", text(sentence), class_="lead")


def listing(entries: Iterable[str]) -> str:
    """An unordered list of texts."""
    return element("ul", *(element("li", text(entry)) for entry in entries))


def table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1
) -> str:
    """A table that can be folded; the first ``left`` columns are text, the others numbers.

    The first column names the row. Cells are text and escaped here.
    """
    head = element(
        "tr",
        *(
            element("th", text(cell), scope="col", class_="text" if at < left else None)
            for at, cell in enumerate(header)
        ),
    )
    body = "\n".join(element("tr", *_cells(row, left)) for row in rows)
    count = f"{len(rows):,} row" + ("" if len(rows) == 1 else "s")
    content = element(
        "table",
        element("caption", text(title), class_="unseen"),
        element("thead", head),
        element("tbody", body),
    )
    # A region that scrolls must be reachable by keyboard, and then requires a name.
    scroll = element("div", content, class_="scroll", tabindex=0, role="region", aria_label=title)
    summary = element("summary", f"{text(title)} ", element("small", f"({count})"))
    kind = "long" if len(rows) > LONG_TABLE else None
    if len(rows) <= SHORT_TABLE:
        return f"<details open>{summary}{scroll}</details>"
    return element("details", summary, scroll, class_=kind)


def _cells(row: Sequence[str], left: int) -> Iterable[str]:
    for at, cell in enumerate(row):
        kind = "text" if at < left else None
        if at == 0 and kind and len(row[0]) > NAME:
            kind = "text name"
        if at == 0:
            yield element("th", text(cell), scope="row", class_=kind)
        else:
            yield element("td", text(cell), class_=kind)
