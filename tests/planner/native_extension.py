"""Comparing the native extension with its reference in Python, and its memory."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import pytest

from seqplan.planner.placement import fill as kernel

Result = TypeVar("Result")

unusable = kernel.why_unusable(kernel.fill_kernel, kernel.SOURCES)
compiled = pytest.mark.skipif(unusable != "", reason=f"the kernel is {unusable}")
"""Marks comparisons of the kernel with the reference."""


def compute_both(compute: Callable[[], Result]) -> tuple[Result, Result]:
    """Compute with the kernel, and with the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(kernel.VARIABLE, raising=False)
        assert kernel.kernel_state() == "compiled"
        ours = compute()
        patch.setenv(kernel.VARIABLE, "python")
        return ours, compute()


def measure_growth(compute: Callable[[], object], times: int) -> int:
    """Return the bytes that ``times`` further calls leave allocated."""
    tracemalloc.start()
    try:
        for _ in range(3):
            compute()
        gc.collect()  # frees tuples that Python keeps, too
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(times):
            compute()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before
