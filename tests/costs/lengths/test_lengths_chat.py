"""Conversations as a source of lengths: rendered by a real tokenizer's template, or estimated."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import call, complaint, succeeded
from lazy_modules import require

from seqplan.costs.lengths import LengthsError, SourceOptions, read_lengths

transformers, tokenizers, _ = map(require, ("transformers", "tokenizers", "jinja2"))

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
    read = read_lengths([chat_file(tmp_path / name, CHATS)], SourceOptions(tokenizer=folder))
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
    text = succeeded(call("lengths", path, "--tokenizer", folder, "-o", output))
    assert f"1,400 sequences, {700 * sum(LENGTHS):,} tokens (" in text
    assert f"; {700 * LOSS_TOKENS:,} loss tokens, those of the assistant)" in text
    fields = json.loads(succeeded(call("lengths", path, "--tokenizer", folder, "--json")))
    assert fields["sources"][0]["loss_tokens"] == 700 * LOSS_TOKENS
    plain = tokenizer_folder(tmp_path / "plain", PLAIN)
    text = succeeded(call("lengths", path, "--tokenizer", plain))
    assert "no loss tokens: the template has no {% generation %}" in text


@pytest.mark.parametrize("more", [(), ("--field", "messages")])
def test_chats_without_a_tokenizer_name_the_option(tmp_path: Path, more: tuple[str, ...]) -> None:
    path = chat_file(tmp_path / "chat.jsonl", CHATS)
    message = complaint(call("lengths", path, *more))
    assert message == (
        f"{path}: line 1 holds conversations. Give the folder of a tokenizer with a chat template "
        "(--tokenizer Qwen3-8B/), or bytes per token to estimate them (--tokenizer 4)"
    )


TURNS = [("user", "a b c"), ("assistant", "d e")]
PREFERRED = [[*TURNS], [TURNS[0], ("assistant", "f")]]


def as_messages(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def as_sharegpt(turns: list[tuple[str, str]]) -> list[dict[str, str]]:
    names = {"user": "human", "assistant": "gpt"}
    return [{"from": names[role], "value": content} for role, content in turns]


RECORDS: dict[str, tuple[dict[str, Any], list[list[tuple[str, str]]]]] = {
    "sharegpt": ({"conversations": as_sharegpt(TURNS), "id": 3}, [TURNS]),
    "sharegpt with a system": (
        {"conversations": as_sharegpt(TURNS), "system": "s"},
        [[("system", "s"), *TURNS]],
    ),
    "alpaca": ({"instruction": "a b", "input": "c", "output": "d e"}, [TURNS]),
    "alpaca with a history": (
        {"instruction": "g", "input": "", "output": "h", "history": [["a b c", "d e"]]},
        [[*TURNS, ("user", "g"), ("assistant", "h")]],
    ),
    "prompt and completion": ({"prompt": "a b c", "completion": "d e"}, [TURNS]),
    "prompt and completion as messages": (
        {"prompt": as_messages(TURNS[:1]), "completion": as_messages(TURNS[1:])},
        [TURNS],
    ),
    "question and answer": ({"question": "a b c", "answer": "d e"}, [TURNS]),
    "preferences": ({"prompt": "a b c", "chosen": "d e", "rejected": "f"}, PREFERRED),
    "preferences as messages": (
        {
            "prompt": "a b c",  # the first message of each response, too
            "chosen": as_messages(PREFERRED[0]),
            "rejected": as_messages(PREFERRED[1]),
        },
        PREFERRED,
    ),
}


@pytest.mark.parametrize("case", sorted(RECORDS))
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
def test_records_of_fine_tuning_data_are_conversations(
    tmp_path: Path, case: str, name: str
) -> None:
    record, conversations = RECORDS[case]
    path = tmp_path / name
    if name == "a.parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist([record]), path)
    elif name == "a.json":
        path.write_text(json.dumps([record], indent=1))
    else:
        chat_file(path, [record])
    folder = tokenizer_folder(tmp_path / "tokenizer", PLAIN)
    words = [sum(3 + len(text.split()) for _, text in turns) for turns in conversations]
    assert read_lengths([path], SourceOptions(tokenizer=folder)).values.tolist() == words
    # Without a template: the texts, and five tokens for each message.
    words = [sum(5 + len(text.split()) for _, text in turns) for turns in conversations]
    read = read_lengths([path], SourceOptions(tokenizer=folder / "tokenizer.json"))
    assert read.values.tolist() == words
    sizes = [sum(5 + -(-len(text) // 2) for _, text in turns) for turns in conversations]
    read = read_lengths([path], SourceOptions(tokenizer=2.0))
    assert read.values.tolist() == sizes
    assert read.sources[0].notes[1].endswith("and 5 for each message, as ChatML has")


def test_images_of_conversations_are_stated_as_uncounted(tmp_path: Path) -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "abcd"}]
    record = {"messages": [{"role": "user", "content": parts}], "images": ["a.png"]}
    path = chat_file(tmp_path / "a.jsonl", [record, record])
    read = read_lengths([path], SourceOptions(tokenizer=4.0))
    assert read.values.tolist() == [6, 6]
    assert read.sources[0].notes[-1] == (
        "patches of images and the like are not counted: 2 parts of messages that are no text, "
        "'images'"
    )


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"conversations": [{"from": "bot", "value": "a"}]}, "has a message from 'bot'. Known are"),
        ({"conversations": [{"from": "gpt"}]}, "'conversations' holds None. It must be a text"),
        ({"conversations": [{"from": ["x"], "value": "a"}]}, "has a message from ['x']. Known are"),
        ({"prompt": "a", "completion": "b", "history": 5}, "'history' holds 5. It must hold pairs"),
        ({"messages": [{"role": "user"}]}, "a message has no content: {'role': 'user'}. Correct"),
        ({"messages": [{"role": "user", "content": 5}]}, "a message holds 5. It must be a text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "a message holds 5. It must be a text",
        ),
        ({"prompt": 3, "completion": "a"}, "field 'prompt' holds 3. It must be a text"),
        ({"prompt": "a", "completion": ["b"]}, "is ['b']. It must be a list of messages"),
        ({"instruction": "a", "output": "b", "history": [["c"]]}, "It must hold pairs of texts"),
        ({"a": 1, "b": 2}, "nor of a conversation; it has 'a', 'b': name one with --field"),
    ],
)
def test_bad_conversations_are_one_line(tmp_path: Path, record: dict[str, Any], why: str) -> None:
    path = chat_file(tmp_path / "a.jsonl", [record])
    with pytest.raises(LengthsError) as rejected:
        read_lengths([path], SourceOptions(tokenizer=4.0))
    assert str(rejected.value).startswith(f"{path}: line 1: ")
    assert why in str(rejected.value)


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
    message = complaint(call("lengths", path, "--tokenizer", folder, "-o", output))
    assert message.startswith(f"{path}: {why}")
    assert not output.exists()


def test_folder_without_a_template_is_rejected(tmp_path: Path) -> None:
    path = chat_file(tmp_path / "chat.jsonl", CHATS)
    bare = tokenizer_folder(tmp_path / "bare", None)
    (tmp_path / "empty").mkdir()
    for folder, why in (
        (tmp_path / "empty", "not a tokenizer with a chat template: "),
        (bare, "not a tokenizer with a chat template: "),
    ):
        with pytest.raises(LengthsError) as rejected:
            read_lengths([path], SourceOptions(tokenizer=folder))
        assert str(rejected.value).startswith(f"{folder}: {why}")
        assert "\n" not in str(rejected.value)


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
        read = read_lengths([path], SourceOptions(tokenizer=folder))
        assert read.values.tolist() == LENGTHS
        assert read.sources[0].loss_tokens == LOSS_TOKENS
        message = complaint(call("lengths", path))
        assert message.startswith(f"{path}: schema holds conversations. Give the folder")
        message = complaint(call("lengths", path, "--tokenizer", folder, "--field", "text"))
        assert message == f"{path}: schema: no field 'text'; it has 'messages', 'tools'"
