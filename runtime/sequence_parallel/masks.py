"""Which earlier tokens of its document a token sees."""

from __future__ import annotations

from typing import NamedTuple


class Mask(NamedTuple):
    """What a causal query sees: its whole document so far, or only the latest part of it.

    ``window``: so many tokens, itself among them; ``chunk``: those of its chunk, if the
    document is divided into chunks of so many tokens. One of them at most.
    """

    window: int | None = None
    chunk: int | None = None

    @classmethod
    def from_sizes(cls, window: int | None, chunk: int | None) -> Mask:
        """Return the mask of a layer's options; ``ValueError`` if they are invalid."""
        if window is not None and chunk is not None:
            raise ValueError(
                f"attention has a window ({window}) and a chunk ({chunk}): give one of them"
            )
        for name, tokens in (("window", window), ("chunk", chunk)):
            if tokens is not None and tokens < 1:
                raise ValueError(f"{name} is {tokens}: it counts the query's token, use at least 1")
        return cls(window, chunk)

    def first_seen(self, position: int) -> int:
        """Return the first position that the token at ``position`` sees."""
        if self.window is not None:
            return max(0, position - self.window + 1)
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        return 0

    @property
    def reach(self) -> int | None:
        """Tokens of a document beyond which something is hidden; None if nothing ever is."""
        return self.chunk if self.window is None else self.window

    def cuts(self, length: int) -> bool:
        """Return whether it hides an earlier token from one in a document of ``length`` tokens."""
        return self.reach is not None and length > self.reach


WHOLE = Mask()
"""The mask of layers whose queries see all of their document so far."""
