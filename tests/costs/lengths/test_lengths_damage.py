"""Files cut short or changed anywhere: an error of ours, or no harm."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from length_files import complaint, file_of, write_idx, write_jsonl

from seqplan.costs.lengths import LengthsError, SourceOptions, read_lengths


def whole_file(path: Path) -> bytes:
    """The lengths 5, 6 and 7 as each kind of file holds them; the name picks the kind."""
    texts = ["ab", "ä", "xyz"]
    columns = pa.table({"text": texts} if "text" in path.name else {"length": [5, 6, 7]})
    if path.suffix == ".npy":
        np.save(path, np.array([5, 6, 7]))
    elif path.suffix == ".parquet":
        pq.write_table(columns, path)
    elif path.suffix == ".idx":
        write_idx(path, [5, 6, 7], [0, 1, 2, 3])
    elif path.suffix == ".gz":
        write_jsonl(path, columns.to_pylist())
    else:
        opener = pa.ipc.new_file if "file" in path.name else pa.ipc.new_stream
        with opener(str(path), columns.schema) as writer:
            writer.write_table(columns)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["a.npy", "a.parquet", "file.arrow", "a.idx", "a.jsonl.gz"])
def test_a_file_cut_anywhere_is_rejected(tmp_path: Path, name: str) -> None:
    whole = whole_file(tmp_path / name)
    for size in range(len(whole)):
        complaint(file_of(tmp_path / name, whole[:size]))


@pytest.mark.parametrize(
    "name",
    ["a.npy", "a.parquet", "file.arrow", "stream.arrow", "text.arrow", "a.idx", "a.jsonl.gz"],
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_an_error_or_harmless(tmp_path: Path, name: str, data: st.DataObject) -> None:
    content = bytearray(whole_file(tmp_path / name))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = file_of(tmp_path / name, bytes(content))
    try:
        read_lengths([path], SourceOptions(tokenizer=1))
    except LengthsError:
        complaint(path, tokenizer=1)
