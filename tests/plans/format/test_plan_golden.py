"""The golden plan files: byte for byte as written, readable, sound, in the schema."""

from pathlib import Path

import pytest
from golden_plans import COSTS, FILES, FOLDER

from seqplan.plans.format.codec import PlanError, from_json
from seqplan.plans.format.plan_file import read_plans, write_plans
from seqplan.plans.lint import lint


def test_every_golden_file_is_known() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_golden_files_equal_written_plans(name: str, tmp_path: Path) -> None:
    with write_plans(tmp_path / name) as write:
        for plan in FILES[name]():
            write(plan)
    assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_golden_files_are_read_and_sound(name: str) -> None:
    plans = list(read_plans(FOLDER / name))
    assert plans == FILES[name]()
    for plan in plans:
        assert lint(plan, COSTS) == []


@pytest.mark.parametrize("name", FILES)
def test_a_line_cut_anywhere_is_rejected(name: str) -> None:
    line = (FOLDER / name).read_text(encoding="utf-8").splitlines()[0]
    for size in range(len(line)):
        with pytest.raises(PlanError, match=r"^here:1: "):
            from_json(line[:size], origin="here:1")


@pytest.mark.parametrize("name", FILES)
def test_a_character_changed_anywhere_is_rejected(name: str) -> None:
    line = (FOLDER / name).read_text(encoding="utf-8").splitlines()[0]
    for at, character in enumerate(line):
        changed = "7" if character != "7" else "8"
        with pytest.raises(PlanError):
            from_json(line[:at] + changed + line[at + 1 :])
