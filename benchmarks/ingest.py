"""Seconds and peak memory of reading many sequence lengths, each source in a fresh process.

The aim: ten million sequences of a .npy or a Megatron .idx in less than 5 s and 1 GiB.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.settings import Data
from benchmarks.tables import Output, Table

AIM_S, AIM_BYTES = 5.0, 1 << 30
AIMED = ("lengths.npy", "documents.idx", "sentences.idx")
SENTENCES = 4
"""Sequences of each document in the index whose documents are split."""


def read_sources(data: Sequence[Data], sequences: int = 10_000_000) -> Output:
    """Write a source of each kind, and read it in a separate process."""
    table = Table(
        "source | size | seconds | peak | aim",
        "{} | {:,.1f} MB | {:.2f} s | {:.0f} MiB | {}",
        title=f"Reading {sequences:,} lengths, each source in a fresh process",
    )
    lengths = np.random.default_rng(0).lognormal(6, 1.5, sequences).astype(np.int32) + SENTENCES
    with tempfile.TemporaryDirectory() as folder:
        for name, write in WRITERS.items():
            path = Path(folder) / name
            write(path, lengths)
            command = [sys.executable, "-m", "benchmarks.read_source", str(path)]
            root = Path(__file__).parents[1]
            completed = subprocess.run(command, check=True, capture_output=True, cwd=root)
            seconds, peak = json.loads(completed.stdout)
            over = "missed" if seconds > AIM_S or peak > AIM_BYTES else "reached"
            size = path.stat().st_size / 1e6
            table.add(name, size, seconds, peak / 2**20, over if name in AIMED else "—")
            path.unlink()
    yield table


def _write_documents(path: Path, lengths: NDArray[np.int32]) -> None:
    _write_idx(path, lengths, np.arange(len(lengths) + 1))


def _write_sentences(path: Path, lengths: NDArray[np.int32]) -> None:
    parts = np.repeat(lengths // SENTENCES, SENTENCES)
    _write_idx(path, parts, np.arange(0, len(parts) + 1, SENTENCES))


def _write_idx(path: Path, tokens: NDArray[np.int32], starts: NDArray[np.int64]) -> None:
    offsets = np.cumsum(tokens, dtype=np.int64) * 2 - tokens * 2
    with path.open("wb") as file:
        file.write(b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + bytes([8]))
        file.write(len(tokens).to_bytes(8, "little") + len(starts).to_bytes(8, "little"))
        for array in (tokens.astype("<i4"), offsets.astype("<i8"), starts.astype("<i8")):
            file.write(array.data)


def _write_txt(path: Path, lengths: NDArray[np.int32]) -> None:
    with path.open("w") as file:
        file.writelines(f"{n}\n" for n in lengths.tolist())


def _write_jsonl(path: Path, lengths: NDArray[np.int32]) -> None:
    with path.open("w") as file:
        file.writelines(f'{{"id": {i}, "length": {n}}}\n' for i, n in enumerate(lengths.tolist()))


def _write_parquet(path: Path, lengths: NDArray[np.int32]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"length": lengths}), path)


WRITERS: dict[str, Callable[[Path, NDArray[np.int32]], None]] = {
    "lengths.npy": np.save,
    "documents.idx": _write_documents,
    "sentences.idx": _write_sentences,
    "lengths.txt": _write_txt,
    "lengths.jsonl": _write_jsonl,
    "lengths.parquet": _write_parquet,
}
