"""Chats as a source of lengths: rendered by transformers' template of a real tokenizer."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call, complaint, succeeded

from seqplan.costs.lengths import LengthsError, SourceOptions, read_lengths

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

PLAIN = (
    "{% if tools %}tools {{ tools | length }} {% endif %}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('the system message comes first') }}{% endif %}"
    "role {{ message['role'] }} {{ message['content'] }} end {% endfor %}"
)
MASKED = PLAIN.replace(
    "{{ message['content'] }} end ",
    "{% if message['role'] == 'assistant' %}{%- generation %}{{ message['content'] }} end "
    "{% endgeneration %}{% else %}{{ message['content'] }} end {% endif %}",
)

CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "a b c"}, {"role": "assistant", "content": "d"}]},
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u v"},
            {"role": "assistant", "content": "w x y z"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "strict": True}}],
        "id": 7,
    },
]
LENGTHS = [3 + 3 + 3 + 1, 2 + 3 * 3 + 1 + 2 + 4]
"""Words of each chat: role, its name and end of each message, its content, the tools."""
LOSS_TOKENS = 2 + 5


def tokenizer_folder(folder: Path, template: str | None) -> Path:
    """Save a tokenizer of words with a chat template."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    fast.model_max_length = 8
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder


def chat_file(path: Path, records: list[dict[str, Any]]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["chat.jsonl", "chat.jsonl.gz"])
@pytest.mark.parametrize("template", [PLAIN, MASKED])
def test_chats_are_counted_by_the_template(tmp_path: Path, name: str, template: str) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer", template)
    path = chat_file(tmp_path / name, CHATS)
    read = read_lengths([path], SourceOptions(chat_template=folder))
    assert read.values.tolist() == LENGTHS
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for chat, length in zip(CHATS, LENGTHS, strict=True):
        rendered = tokenizer.apply_chat_template(
            chat["messages"], tools=chat.get("tools"), tokenize=False
        )
        assert len(rendered.split()) == length
    (source,) = read.sources
    assert source.loss_tokens == (LOSS_TOKENS if template == MASKED else None)


def test_command_states_loss_tokens(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer", MASKED)
    path = chat_file(tmp_path / "chat.jsonl", CHATS * 700)
    output = tmp_path / "lengths.npy"
    text = succeeded(call("lengths", path, "--chat-template", folder, "-o", output))
    assert f"1,400 sequences, {700 * sum(LENGTHS):,} tokens ({700 * LOSS_TOKENS:,} loss tok" in text
    fields = json.loads(succeeded(call("lengths", path, "--chat-template", folder, "--json")))
    assert fields["sources"][0]["loss_tokens"] == 700 * LOSS_TOKENS
    plain = tokenizer_folder(tmp_path / "plain", PLAIN)
    text = succeeded(call("lengths", path, "--chat-template", plain))
    assert "no loss tokens: the template has no {% generation %}" in text


@pytest.mark.parametrize("more", [(), ("--field", "messages")])
def test_chats_without_a_template_name_the_option(tmp_path: Path, more: tuple[str, ...]) -> None:
    path = chat_file(tmp_path / "chat.jsonl", CHATS)
    message = complaint(call("lengths", path, *more))
    assert message == (
        f"{path}: line 1: field 'messages' holds chats. Give the folder of a "
        "tokenizer with a chat template (--chat-template, in plan --tokenizer)"
    )


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"text": "a"}, "line 2: field 'messages' is None. It must be a list of messages"),
        ({"messages": []}, "line 2: field 'messages' is []. It must be a list of messages"),
        ({"messages": "hello"}, "line 2: field 'messages' is 'hello'. It must be a list of"),
        ({"messages": [1]}, "line 2: field 'messages' is [1]. It must be a list of messages"),
        (
            {"messages": [CHATS[0]["messages"][0], {"role": "system", "content": "s"}]},
            "line 2: the chat template fails: the system message comes first. Correct the record",
        ),
    ],
)
def test_bad_chats_are_one_line(tmp_path: Path, record: dict[str, Any], why: str) -> None:
    folder = tokenizer_folder(tmp_path / "tokenizer", PLAIN)
    path = chat_file(tmp_path / "chat.jsonl", [CHATS[0], record])
    output = tmp_path / "lengths.npy"
    message = complaint(call("lengths", path, "--chat-template", folder, "-o", output))
    assert message.startswith(f"{path}: {why}")
    assert not output.exists()


def test_folder_without_a_template_is_rejected(tmp_path: Path) -> None:
    path = chat_file(tmp_path / "chat.jsonl", CHATS)
    bare = tokenizer_folder(tmp_path / "bare", None)
    (tmp_path / "empty").mkdir()
    for folder, why in (
        (tmp_path / "none", "no such folder. Give a tokenizer's folder"),
        (tmp_path / "empty", "not a tokenizer with a chat template: "),
        (bare, "not a tokenizer with a chat template: "),
    ):
        with pytest.raises(LengthsError) as rejected:
            read_lengths([path], SourceOptions(chat_template=folder))
        assert str(rejected.value).startswith(f"{folder}: {why}")
        assert "\n" not in str(rejected.value)
    with pytest.raises(LengthsError, match="a chat template counts with its tokenizer"):
        SourceOptions(chat_template=bare, bytes_per_token=4.0)
    with pytest.raises(LengthsError, match=r"chats are read from \.jsonl, \.jsonl\.gz, \.parq"):
        read_lengths([tmp_path], SourceOptions(chat_template=bare))


def test_chats_of_a_table_are_those_of_its_records(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    folder = tokenizer_folder(tmp_path / "tokenizer", MASKED)
    records = [{"messages": c["messages"], "tools": c.get("tools")} for c in CHATS]
    table = pa.Table.from_pylist(records)
    pq.write_table(table, tmp_path / "chat.parquet")
    sink = pa.OSFile(str(tmp_path / "chat.arrow"), "wb")
    with sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    for name in ("chat.parquet", "chat.arrow"):
        path = tmp_path / name
        read = read_lengths([path], SourceOptions(chat_template=folder))
        assert read.values.tolist() == LENGTHS
        assert read.sources[0].loss_tokens == LOSS_TOKENS
        for more in ((), ("--field", "messages")):
            message = complaint(call("lengths", path, *more))
            assert "field 'messages' holds chats. Give the folder of a tokenizer" in message
        message = complaint(call("lengths", path, "--chat-template", folder, "--field", "text"))
        assert message == f"{path}: schema: no field 'text'; it has 'messages', 'tools'"
