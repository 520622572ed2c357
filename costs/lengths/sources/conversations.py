"""Conversations in the layouts of fine-tuning data, as lists of messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seqplan.costs.lengths.sources.error import LengthsError, shown

CHATS = ("messages", "conversations")
PROMPTS = ("prompt", "instruction", "question", "problem", "query")
RESPONSES = ("completion", "response", "output", "answer", "solution")
PREFERENCES = ("chosen", "rejected")
OPTIONAL = ("system", "history", "input", "tools")
"""Fields read where a record has them: what comes before the prompt, and after it."""

UNCOUNTED = ("image", "images", "video", "videos", "audio", "audios")

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
} | {role: role for role in ("user", "assistant", "system", "tool")}
"""Names that ShareGPT's layout has for a message's author, as chat templates have them."""

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """Fields that hold conversations: a chat, or a prompt and its responses.

    Each response is a sequence: a record of preferences has two, with the same prompt.
    """

    chat: str | None = None
    prompt: str | None = None
    responses: tuple[str, ...] = ()

    def list_fields(self, present: Sequence[str]) -> list[str]:
        """List the fields to read, of those that records have."""
        names = (self.chat, self.prompt, *self.responses, *OPTIONAL)
        return [name for name in present if name in names]

    def describe(self) -> str:
        """Describe the fields that are read, for a summary."""
        if self.chat is not None:
            return f"chats in field {self.chat!r}"
        prompt = "responses" if self.prompt is None else f"prompts in field {self.prompt!r}"
        responses = " and ".join(repr(name) for name in self.responses)
        each = ", a sequence for each response" if len(self.responses) > 1 else ""
        return f"{prompt}, responses in {responses}{each}"

    def list_chats(self, record: Mapping[str, Any], place: str) -> list[list[Message]]:
        """List a record's conversations; ``LengthsError`` for values of another type."""
        before = [_message("system", record["system"], place)] if record.get("system") else []
        if self.chat is not None:
            return [[*before, *_read_messages(record.get(self.chat), self.chat, place)]]
        history = record.get("history") or []
        for pair in history if type(history) is list else [history]:
            if not (type(pair) is list and len(pair) == 2):
                raise LengthsError(
                    f"{place}: field 'history' holds {shown(pair)}. It must hold pairs of texts"
                )
            before += [_message("user", pair[0], place), _message("assistant", pair[1], place)]
        before += self._read_prompt(record, place)
        return [
            _join(before, _read_side(record.get(name), name, "assistant", place))
            for name in self.responses
        ]

    def _read_prompt(self, record: Mapping[str, Any], place: str) -> list[Message]:
        if self.prompt is None:
            return []
        messages = _read_side(record.get(self.prompt), self.prompt, "user", place)
        if not record.get("input"):
            return messages
        content = (
            f"{messages[-1]['content']}\n{_message('user', record['input'], place)['content']}"
        )
        return [*messages[:-1], {**messages[-1], "content": content}]


def find_layout(present: Sequence[str], field: str | None = None) -> Layout | None:
    """Find the layout of records with these fields, None if it is unknown.

    ``field``: the field of chats.
    """
    for chat in CHATS if field is None else (field,):
        if chat in present:
            return Layout(chat=chat)
    prompt = next((name for name in PROMPTS if name in present), None)
    if all(name in present for name in PREFERENCES):
        return Layout(prompt=prompt, responses=PREFERENCES)
    response = next((name for name in RESPONSES if name in present), None)
    if prompt is None or response is None:
        return None
    return Layout(prompt=prompt, responses=(response,))


def is_chat(value: Any) -> bool:
    """Return whether a field's value is a list of messages."""
    return type(value) is list and bool(value) and all(type(entry) is dict for entry in value)


def list_texts(message: Message, place: str) -> list[str]:
    """List the texts of a message, with calls of tools as JSON; ``LengthsError`` if it has none."""
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and not calls:
        raise LengthsError(f"{place}: a message has no content: {shown(message)}. Correct it")
    parts = content if isinstance(content, list) else [content]
    texts = [json.dumps(calls, ensure_ascii=False)] if calls else []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if type(text) is str:
            texts.append(text)
        elif text is not None:  # as of an image, or of a message that calls tools alone
            raise LengthsError(f"{place}: a message holds {shown(text)}. It must be a text")
    return texts


def count_other_parts(messages: Sequence[Message]) -> int:
    """Count the images and other parts of messages that are no text."""
    return sum(
        isinstance(part, dict) and part.get("type", "text") != "text"
        for message in messages
        for part in (message["content"] if isinstance(message.get("content"), list) else ())
    )


def _join(before: list[Message], response: list[Message]) -> list[Message]:
    """Put the prompt before a response, unless the response begins with one itself."""
    return response if response[0].get("role") != "assistant" else [*before, *response]


def _read_side(value: Any, field: str, role: str, place: str) -> list[Message]:
    """Read a prompt or a response: a text, or a list of messages."""
    if isinstance(value, list):
        return _read_messages(value, field, place)
    return [_message(role, value, f"{place}: field {field!r}")]


def _read_messages(value: Any, field: str, place: str) -> list[Message]:
    if not is_chat(value):
        raise LengthsError(
            f"{place}: field {field!r} is {shown(value)}. It must be a list of messages"
        )
    return [_rename(message, field, place) for message in value]


def _rename(message: Message, field: str, place: str) -> Message:
    """Return the message with a role and a content, as chat templates read it."""
    if "from" not in message or "role" in message:
        return message
    author = message["from"]
    if type(author) is not str or author not in ROLES:
        raise LengthsError(
            f"{place}: field {field!r} has a message from {shown(author)}. Known are "
            f"{', '.join(ROLES)}"
        )
    return _message(ROLES[author], message.get("value"), f"{place}: field {field!r}")


def _message(role: str, text: Any, place: str) -> Message:
    if not isinstance(text, str):
        raise LengthsError(f"{place} holds {shown(text)}. It must be a text")
    return {"role": role, "content": text}
