"""Percentages and counts in text for people, in one form: ``12.3 %``, ``1 step``."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import Any


def percent(share: float, digits: int = 1, sign: str = "") -> str:
    """Write a share as a percentage; ``sign``: ``+`` to write it of positive ones, too."""
    rounded = round(100 * share, digits) + 0.0  # no "-0.0"
    return f"{rounded:{sign},.{digits}f} %"


def count_of(number: int, noun: str) -> str:
    """A number of things: ``1 step``, ``1,024 steps``."""
    plural = "es" if noun.endswith("ch") else "s"
    return f"{number:,} {noun if number == 1 else noun + plural}"


def wrap_text(text: str, width: int, **options: Any) -> list[str]:
    """Wrap text, but not between a number and its percent sign."""
    kept = re.sub(r"(?<=\d) (?=%)", "\N{NO-BREAK SPACE}", text)
    return [re.sub("\N{NO-BREAK SPACE}(?=%)", " ", line) for line in wrap(kept, width, **options)]
