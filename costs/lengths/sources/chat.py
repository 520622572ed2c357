"""Lengths of chats: messages rendered by the template of a tokenizer and counted with it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seqplan.costs.lengths.sources.collector import Collector
from seqplan.costs.lengths.sources.error import LengthsError, first_line, shown

MESSAGES, TOOLS = "messages", "tools"
"""Fields of a record: a chat's messages, and the tools that its template is given."""

GENERATION = "{% generation"
"""Text of a template around an assistant's tokens, from which their mask follows."""

CHUNK = 1024


class ChatTokenizer:
    """A folder's tokenizer with its chat template; ``LengthsError`` for one without."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise LengthsError(f"{folder}: no such folder. Give a tokenizer's folder")
        try:
            from transformers import AutoTokenizer
            from transformers.utils import logging
        except ImportError:
            raise LengthsError(
                f"{folder}: a chat template needs the transformers package. pip install "
                "'seqplan[huggingface]' jinja2"
            ) from None
        logging.set_verbosity_error()  # a chat beyond the model's context is a length like others
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            template: str = self._tokenizer.get_chat_template()
        except Exception as error:  # the library raises errors of many kinds
            raise LengthsError(
                f"{folder}: not a tokenizer with a chat template: {first_line(error)}"
                ". Name a tokenizer's folder whose tokenizer_config.json has a template"
            ) from None
        self.masks = GENERATION in template.replace("{%-", "{%")

    def count(self, messages: Any, tools: Any, place: str) -> tuple[int, int]:
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
    records: Iterable[tuple[str, Any, Any]], field: str, tokenizer: ChatTokenizer, out: Collector
) -> None:
    """Read one chat a record: its place, its messages, which are in ``field``, and its tools."""
    lengths: list[int] = []
    places: list[str] = []
    loss_tokens = 0

    def keep() -> None:
        out.add(lengths, lambda i: places[i])
        lengths.clear()
        places.clear()

    for place, messages, tools in records:
        if not is_chat(messages):
            raise LengthsError(
                f"{place}: field {field!r} is {shown(messages)}. It must be a list of messages"
            )
        tokens, of_assistant = tokenizer.count(messages, tools, place)
        lengths.append(tokens)
        places.append(place)
        loss_tokens += of_assistant
        if len(lengths) == CHUNK:
            keep()
    keep()
    if tokenizer.masks:
        out.count_loss(loss_tokens)
        out.note(f"{loss_tokens:,} loss tokens, those of the assistant")
    else:
        out.note("no loss tokens: the template has no {% generation %} around an assistant's")


def is_chat(value: Any) -> bool:
    """Return whether a field's value is a list of messages."""
    return type(value) is list and bool(value) and all(type(item) is dict for item in value)


def needs_template(place: str) -> LengthsError:
    """Return the error for chats without a template."""
    return LengthsError(
        f"{place} holds chats. Give the folder of a tokenizer with a chat template "
        "(--chat-template, in plan --tokenizer)"
    )
