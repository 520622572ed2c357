"""Mutants are changes of lines that the source has."""

from pathlib import Path

import pytest

from benchmarks.mutations import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.old}")
def test_mutant_changes_one_line_that_has_tests(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert all((ROOT / test).is_file() for test in mutant.tests)
