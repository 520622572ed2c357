"""Folders as ``datasets.save_to_disk`` writes them (5.2): arrow streams, state.json, splits."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from seqplan.costs.lengths import LengthsError, read_lengths
from seqplan.costs.lengths.sources.options import SourceOptions

OPTIONS = SourceOptions(field="input_ids")


def saved(folder: Path, shards: list[list[int]]) -> Path:
    """A data set of these lengths; its files' names do not sort in the order of their rows."""
    folder.mkdir(parents=True)
    names = [f"data-{chr(ord('z') - number)}.arrow" for number in range(len(shards))]
    for name, lengths in zip(names, shards, strict=True):
        table = pa.table({"input_ids": [[1] * n for n in lengths], "other": ["x"] * len(lengths)})
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table)
    files = [{"filename": name} for name in names]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": None}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def test_rows_are_read_in_their_order(tmp_path: Path) -> None:
    folder = saved(tmp_path / "set", [[5, 3], [9], [700, 1]])
    assert read_lengths([folder], OPTIONS).values.tolist() == [5, 3, 9, 700, 1]
    saved(tmp_path / "more", [[2]])
    assert read_lengths([str(tmp_path / "*")], OPTIONS).values.tolist() == [2, 5, 3, 9, 700, 1]


def test_a_split_must_be_named(tmp_path: Path) -> None:
    train = saved(tmp_path / "set" / "train", [[5, 3]])
    saved(tmp_path / "set" / "test", [[9]])
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(
        LengthsError, match=r"has the splits train, test; give one, as .*/set/train"
    ):
        read_lengths([tmp_path / "set"], OPTIONS)
    assert read_lengths([train], OPTIONS).values.tolist() == [5, 3]


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("{", "state.json: not JSON"),
        ("[]", "state.json: must be an object"),
        ('{"_data_files": []}', "state.json: names no data files"),
        ('{"_data_files": [{"filename": 3}]}', "state.json: names no data files"),
        ('{"_data_files": [{"filename": "gone.arrow"}]}', "gone.arrow: no such file, though"),
        ('{"_data_files": [{"filename": "a"}], "_indices_data_files": [1]}', "flatten_indices"),
    ],
)
def test_damage_is_named(tmp_path: Path, state: str, message: str) -> None:
    folder = saved(tmp_path / "set", [[5]])
    (folder / "state.json").write_text(state)
    with pytest.raises(LengthsError, match=message):
        read_lengths([folder], OPTIONS)
