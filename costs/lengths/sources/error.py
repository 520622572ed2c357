"""The one error of the length sources."""

from __future__ import annotations


class LengthsError(ValueError):
    """A length source that cannot be used: one line with the error, its place and a fix."""


class UncountedText(LengthsError):
    """Text in a source, without a way to count its tokens."""

    @property
    def cause(self) -> str:
        """Return the message without its last sentence, the fix."""
        return str(self).rpartition(". ")[0]


def shown(value: object, limit: int = 40) -> str:
    """Show a value as an error quotes it: its ``repr`` on one line, cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, or the kind of error without one."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
