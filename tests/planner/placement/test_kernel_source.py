"""Which native extension is used: built from the sources next to it, unless left out."""

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from seqplan.planner.placement import fill as kernel


def test_the_source_states_its_digest() -> None:
    text = kernel.SOURCES[1].read_text("utf-8")
    stated = re.search(r'^#define SOURCE "(\w+)"$', text, re.MULTILINE)
    assert stated[1] == kernel.source_digest(kernel.SOURCES), "state the digest and build again"


def test_a_kernel_of_another_source_is_not_used(tmp_path: Path) -> None:
    built = ModuleType("fill_kernel")
    built.SOURCE = kernel.source_digest(kernel.SOURCES)  # type: ignore[attr-defined]
    assert kernel.why_unusable(built, kernel.SOURCES) == ""
    edited = [Path(shutil.copy(path, tmp_path)) for path in kernel.SOURCES]
    assert kernel.why_unusable(built, edited) == ""
    edited[3].write_text(edited[3].read_text("utf-8").replace("0.5", "0.4"), "utf-8")
    assert kernel.why_unusable(built, edited) == "built from other sources"
    edited[3].unlink()
    assert kernel.why_unusable(built, edited) == "sized.c is not next to it"
    assert kernel.why_unusable(None, kernel.SOURCES) == "not built"


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernel.VARIABLE, "python")
    assert kernel.kernel_state() == "Python (SEQPLAN_KERNEL=python)"
    monkeypatch.setenv(kernel.VARIABLE, "fast")
    with pytest.raises(ValueError, match="SEQPLAN_KERNEL is 'fast'; set it to python, or not at"):
        kernel.kernel_state()
