"""Patches of frames from columns of grids, in JSON Lines and Parquet."""

import json
from pathlib import Path

import pytest

from seqplan import read_lengths
from seqplan.costs.lengths import LengthsError, SourceOptions

GRIDS = [[[1, 32, 48], [1, 16, 16]], [], [[3, 20, 20]], None]
PATCHES = [32 * 48, 256, 400, 400, 400]


def test_each_frame_is_a_sequence(tmp_path: Path) -> None:
    lines = tmp_path / "images.jsonl"
    lines.write_text("".join(json.dumps({"image_grid_thw": grids}) + "\n" for grids in GRIDS))
    found = read_lengths([lines], SourceOptions(field="image_grid_thw"))
    assert found.values.tolist() == PATCHES
    assert found.sources[0].notes == ("patches of each frame; 2 of 4 records have images",)
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"image_grid_thw": pa.array(GRIDS, pa.list_(pa.list_(pa.int64())))})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "images.parquet")
    again = read_lengths([tmp_path / "images.parquet"], SourceOptions(field="image_grid_thw"))
    assert again.values.tolist() == PATCHES


@pytest.mark.parametrize("value", [[[1, 0, 4]], [[1, 2]], "text", [["a", 1, 2]], [[1.0, 2, 3]]])
def test_values_that_are_no_grids_are_rejected_by_line(tmp_path: Path, value: object) -> None:
    lines = tmp_path / "images.jsonl"
    lines.write_text(json.dumps({"video_grid_thw": [4, 8, 8]}) + "\n")
    options = SourceOptions(field="video_grid_thw")
    assert read_lengths([lines], options).values.tolist() == [64] * 4
    lines.write_text(lines.read_text() + json.dumps({"video_grid_thw": value}) + "\n")
    with pytest.raises(LengthsError, match="line 2: field 'video_grid_thw' is"):
        read_lengths([lines], options)
