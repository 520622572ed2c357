"""Lengths of conversations: by a tokenizer's chat template, or estimated message by message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from seqplan.costs.lengths.sources.collector import Collector
from seqplan.costs.lengths.sources.conversations import (
    UNCOUNTED,
    Layout,
    Message,
    count_other_parts,
    list_texts,
)
from seqplan.costs.lengths.sources.error import LengthsError, first_line

GENERATION = "{% generation"
"""Text of a template around an assistant's tokens, from which their mask follows."""

MESSAGE_TOKENS = 5
"""Tokens that ChatML has around a message: two marks, the role and two ends of a line."""

CHUNK = 1024


class ChatCounter(Protocol):
    """Counts the tokens of conversations."""

    masks: bool
    """Whether an assistant's tokens are counted apart."""

    @property
    def note(self) -> str:
        """How tokens are counted."""

    def count(self, messages: Sequence[Message], tools: Any, place: str) -> tuple[int, int]:
        """Count the tokens of a conversation, and those of them that an assistant wrote."""


class TextCounter(Protocol):
    """Counts the tokens of texts, without those that mark a sequence's ends."""

    @property
    def note(self) -> str:
        """How tokens are counted."""

    def count(self, texts: list[str], *, marks: bool = True) -> list[int]:
        """Count the tokens of each text; ``marks``: with those that mark its ends."""


class MessageCounter:
    """Counts the texts of a conversation, and ``MESSAGE_TOKENS`` for each message."""

    masks = False

    def __init__(self, texts: TextCounter) -> None:
        self._texts = texts

    @property
    def note(self) -> str:
        """How tokens are counted."""
        return f"{self._texts.note}, and {MESSAGE_TOKENS} for each message, as ChatML has"

    def count(self, messages: Sequence[Message], tools: Any, place: str) -> tuple[int, int]:
        """Count the tokens of a conversation; an assistant's are not known."""
        texts = [text for message in messages for text in list_texts(message, place)]
        if tools:
            texts.append(tools if isinstance(tools, str) else json.dumps(tools, ensure_ascii=False))
        counts = self._texts.count(texts, marks=False) if texts else []
        return sum(counts) + MESSAGE_TOKENS * len(messages), 0


class ChatTokenizer:
    """A folder's tokenizer with its chat template; ``LengthsError`` for one without."""

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoTokenizer
            from transformers.utils import logging
        except ImportError:
            raise LengthsError(
                f"{folder}: a chat template needs the transformers package. pip install "
                "'seqplan[huggingface]' jinja2, or give the folder's tokenizer.json, to count texts"
            ) from None
        logging.set_verbosity_error()  # a chat beyond the model's context is a length like others
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            template: str = self._tokenizer.get_chat_template()
        except Exception as error:  # the library raises errors of many kinds
            raise LengthsError(
                f"{folder}: not a tokenizer with a chat template: {first_line(error)}"
                ". Name a folder whose tokenizer_config.json has a template, or a tokenizer.json"
            ) from None
        self._folder = folder
        self.masks = GENERATION in template.replace("{%-", "{%")

    @property
    def note(self) -> str:
        """How tokens are counted."""
        return f"by the chat template of {self._folder}"

    def count(self, messages: Sequence[Message], tools: Any, place: str) -> tuple[int, int]:
        """Count the tokens of a chat, and those of them that an assistant wrote."""
        try:
            encoded = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=self.masks,
            )
        except ImportError as error:
            raise LengthsError(f"{place}: {first_line(error)}. pip install jinja2") from None
        except Exception as error:  # from the template, and from its messages
            raise LengthsError(
                f"{place}: the chat template fails: {first_line(error)}. Correct the record"
            ) from None
        loss_tokens = sum(encoded["assistant_masks"]) if self.masks else 0
        return len(encoded["input_ids"]), loss_tokens


def read_chats(
    records: Iterable[tuple[str, Mapping[str, Any]]],
    layout: Layout,
    present: Sequence[str],
    counter: ChatCounter,
    out: Collector,
) -> None:
    """Read the conversations of each record: its place, and its fields.

    ``present``: the fields of the data set, of which images and the like are stated as uncounted.
    """
    out.note(layout.describe())
    out.note(counter.note)
    lengths: list[int] = []
    places: list[str] = []
    loss_tokens = others = 0

    def keep() -> None:
        out.add(lengths, lambda i: places[i])
        lengths.clear()
        places.clear()

    for place, record in records:
        for messages in layout.list_chats(record, place):
            tokens, of_assistant = counter.count(messages, record.get("tools") or None, place)
            lengths.append(tokens)
            places.append(place)
            loss_tokens += of_assistant
            others += count_other_parts(messages)
        if len(lengths) >= CHUNK:
            keep()
    keep()
    uncounted = [repr(name) for name in UNCOUNTED if name in present]
    if others or uncounted:
        parts = [f"{others:,} parts of messages that are no text"] if others else []
        out.note(
            f"patches of images and the like are not counted: {', '.join([*parts, *uncounted])}"
        )
    if counter.masks:
        out.count_loss(loss_tokens)
        out.note(f"{loss_tokens:,} loss tokens, those of the assistant")
    elif isinstance(counter, ChatTokenizer):
        out.note("no loss tokens: the template has no {% generation %} around an assistant's")
