"""Fenced blocks of the README and the pages, with the mark in the line before each."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

SHELLS = ("bash", "sh", "shell", "console")
COMMAND = re.compile(r"(\$ )?((\./run )?seqplan|curl|docker|buildah) ")
"""How a block of any language begins that a reader types."""

PROXY = re.compile(r"^ +(proxy_pass|reverse_proxy) ", re.MULTILINE)
"""A setting of a proxy before the service."""


@dataclass(frozen=True)
class Block:
    """A fenced block: ``mark`` is the comment before it, of which one kind leaves it to others."""

    page: Path
    line: int
    language: str
    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def can_run(self) -> bool:
        """Whether it is code that a reader runs."""
        starts = COMMAND.match(self.text) or PROXY.search(self.text)
        return self.language in ("python", *SHELLS) or starts is not None

    @property
    def not_run(self) -> str | None:
        """The reason for which no test runs it."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else None

    @property
    def run_by(self) -> str | None:
        """The test that runs it."""
        return self.mark.removeprefix("run by: ") if self.mark.startswith("run by: ") else None

    @property
    def is_output(self) -> bool:
        """Whether it is the output of the block before it."""
        return self.mark == "output of the block above"


def read_blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page."""
    lines = page.read_text("utf-8").splitlines()
    opened: int | None = None
    for at, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = at
            continue
        comment = re.fullmatch(r"<!-- (.*) -->", lines[opened - 1]) if opened else None
        yield Block(
            page=page,
            line=opened + 1,
            language=lines[opened].removeprefix("```").strip(),
            text="\n".join(lines[opened + 1 : at]) + "\n",
            mark=comment[1] if comment else "",
        )
        opened = None
    assert opened is None, f"{page.name}: a block that does not end"
