"""What the tests of length sources share: writing the files, and reading the complaint."""

import gzip
import json
import os
import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from seqplan.costs.lengths import LengthsError, SourceOptions, read_lengths

LARGE = "is above the largest accepted, 2147483647; split the sequence or fix the value"
SMALL = "is not positive; remove the sequence from the source"


def complaint(*sources: Path, **options: Any) -> str:
    """The message for bad sources, with the folder of the first taken away."""
    with pytest.raises(LengthsError) as caught:
        read_lengths(sources, SourceOptions(**options))
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{sources[0].parent}{os.sep}", "") if sources else message


def file_of(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_idx(
    path: Path, sequences: Sequence[int], starts: Sequence[int], *, modes: bool = False
) -> None:
    """A Megatron index as its builder lays it out, for 32-bit tokens."""
    offsets = [0, *accumulate(4 * n for n in sequences)][:-1]
    path.write_bytes(
        b"MMIDIDX\0\0"
        + struct.pack("<QBQQ", 1, 4, len(sequences), len(starts))
        + struct.pack(f"<{len(sequences)}i", *sequences)
        + struct.pack(f"<{len(sequences)}q", *offsets)
        + struct.pack(f"<{len(starts)}q", *starts)
        + (bytes(len(sequences)) if modes else b"")
    )


def write_jsonl(path: Path, records: Sequence[object]) -> Path:
    text = "".join(json.dumps(record) + "\n" for record in records)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, "utf-8")
    return path


def write_tokenizer(path: Path) -> Path:
    """A tokenizer of words, saved with limits that lengths must not obey."""
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.enable_truncation(3)
    words.enable_padding(length=7)
    words.save(str(path))
    return path
