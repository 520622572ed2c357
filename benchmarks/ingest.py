"""Reading lengths: ten million sequences from .npy and .idx."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.lengths_ingest import main
from benchmarks.settings import Data


def run(data: Sequence[Data]) -> None:
    """Print seconds and peak memory; the sources are written for the purpose."""
    print("### Reading lengths, each source in a fresh process\n")
    main([])
    print()
