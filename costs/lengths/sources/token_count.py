"""Tokens of text: counted with a tokenizer, or estimated from bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.chat import ChatCounter, ChatTokenizer, MessageCounter
from seqplan.costs.lengths.sources.collector import Collector
from seqplan.costs.lengths.sources.error import LengthsError, UncountedText, first_line
from seqplan.costs.lengths.sources.options import SourceOptions

BATCH_BYTES = 4 << 20
"""Text held at once, unless a single one is longer."""

BATCH_TEXTS = 2048

TOKENIZER_FILE = "tokenizer.json"


class TokenCounter:
    """Counts the tokens of texts by the options. The tokenizer is loaded at first use."""

    def __init__(self, options: SourceOptions) -> None:
        self._given = options.tokenizer
        self._tokenizer: Any = None
        self.required = False
        """Whether there was text to count."""

    @property
    def estimates(self) -> bool:
        """Whether counts are estimated, so that a text's bytes are all that is needed."""
        return isinstance(self._given, int | float)

    @property
    def note(self) -> str:
        """How tokens are counted."""
        if self.estimates:
            return f"estimated from bytes at {self._given:g} bytes per token"
        return f"counted with {self._given}, its special tokens included"

    def require(self, place: str) -> None:
        """Raise ``LengthsError`` unless text, found at ``place``, can be counted."""
        if self._given is None:
            raise UncountedText(
                f"{place} is text. Give a tokenizer.json to count its tokens, or bytes per token "
                "to estimate them (--tokenizer 4)"
            )
        self.required = True
        if self._tokenizer is None and not self.estimates:
            self._tokenizer = _load(self._given)

    def require_chats(self, place: str) -> ChatCounter:
        """Return what counts conversations, found at ``place``; ``LengthsError`` without it."""
        if self._given is None:
            raise UncountedText(
                f"{place} holds conversations. Give the folder of a tokenizer with a chat template "
                "(--tokenizer Qwen3-8B/), or bytes per token to estimate them (--tokenizer 4)"
            )
        self.required = True
        if isinstance(self._given, Path) and self._given.is_dir():
            return ChatTokenizer(self._given)
        self.require(place)
        return MessageCounter(self)

    def estimate(self, size_bytes: int) -> int:
        """Estimate the tokens of a text of this many UTF-8 bytes, rounded up."""
        assert isinstance(self._given, int | float)
        return math.ceil(size_bytes / self._given)

    def count(self, texts: list[str], *, marks: bool = True) -> list[int]:
        """Count the tokens of each text; ``marks``: with those that mark its ends."""
        if self.estimates:
            return [self.estimate(len(text.encode("utf-8", "surrogatepass"))) for text in texts]
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=marks)
        except (TypeError, UnicodeEncodeError):
            # JSON may hold half a surrogate pair, which has no UTF-8 for the tokenizer.
            whole = [text.encode("utf-8", "replace").decode() for text in texts]
            encodings = self._tokenizer.encode_batch_fast(whole, add_special_tokens=marks)
        return [len(encoding) for encoding in encodings]


def _load(given: Path | float) -> Any:
    assert isinstance(given, Path)
    path = given / TOKENIZER_FILE if given.is_dir() else given
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise LengthsError(
            f"{path}: counting tokens needs the tokenizers package: "
            "pip install 'seqplan[tokenizers]'"
        ) from None
    if not path.is_file():
        raise LengthsError(f"{path}: no such tokenizer file; give a Hugging Face tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise LengthsError(
            f"{path}: is not a Hugging Face tokenizer.json: {first_line(error)}"
            ". Name a tokenizer.json"
        ) from None
    # A saved tokenizer may carry the limits of one model's inputs; lengths must not.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class TextBatch:
    """Texts on their way to the collector, counted a batch at a time."""

    def __init__(self, counter: TokenCounter, collector: Collector) -> None:
        self._counter = counter
        self._collector = collector
        self._texts: list[str] = []
        self._places: list[Any] = []
        self._characters = 0

    def add(self, text: str, key: Any, place: Callable[[Any], str]) -> None:
        """Take a text; ``place(key)`` names its source if it turns out to be empty."""
        self._texts.append(text)
        self._places.append(key)
        self._characters += len(text)
        if self._characters >= BATCH_BYTES or len(self._texts) >= BATCH_TEXTS:
            self.flush(place)

    def flush(self, place: Callable[[Any], str]) -> None:
        """Count the texts that are held."""
        if self._texts:
            counts = self._counter.count(self._texts)
            keys = self._places
            self._collector.add(counts, lambda i: place(keys[i]))
            self._texts, self._places, self._characters = [], [], 0
