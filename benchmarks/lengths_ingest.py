"""Seconds and peak memory of reading many sequence lengths, each source in a fresh process.

``python -m benchmarks.lengths_ingest [--sequences N]``. The aim: ten million sequences of a .npy
or a Megatron .idx in less than 5 s and 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

AIM_SECONDS = 5.0
AIM_BYTES = 1 << 30
AIMED = ("lengths.npy", "documents.idx", "sentences.idx")
SENTENCES = 4
"""Sequences of each document in the index whose documents are split."""


def main(argv: list[str] | None = None) -> int:
    """Write the sources, read each in a separate process, print a line for each."""
    parser = argparse.ArgumentParser(prog="benchmarks.lengths_ingest", description=__doc__)
    parser.add_argument("--sequences", type=int, default=10_000_000)
    parser.add_argument("--read", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.read is not None:
        print(json.dumps(_measured(args.read)))
        return 0
    missed = False
    with tempfile.TemporaryDirectory() as folder:
        for path in _sources(Path(folder), args.sequences):
            size = path.stat().st_size
            seconds, peak_bytes = _in_a_process(path)
            path.unlink()
            aimed = path.name in AIMED
            over = aimed and (seconds > AIM_SECONDS or peak_bytes > AIM_BYTES)
            missed |= over
            print(
                f"{path.name:15} {args.sequences:,} sequences, {size / 1e6:7,.1f} MB: "
                f"{seconds:6.2f} s, peak {peak_bytes / 2**20:6.0f} MiB"
                + (" (aim missed)" if over else ""),
                flush=True,
            )
    return int(missed)


def _in_a_process(path: Path) -> tuple[float, int]:
    command = [sys.executable, "-m", "benchmarks.lengths_ingest", "--read", str(path)]
    root = Path(__file__).parent.parent
    measured = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=root).stdout)
    return measured["seconds"], measured["peak_bytes"]


def _measured(path: Path) -> dict[str, float]:
    """Import and reading together: what a person waits for."""
    start = time.perf_counter()
    from seqplan.costs.lengths import read_lengths, summarise

    summarise(read_lengths([path]).values)
    return {"seconds": time.perf_counter() - start, "peak_bytes": _peak_bytes()}


def _peak_bytes() -> int:
    """Peak resident memory of this process, mapped pages of the source included."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would also count the parent, as it was when this process was forked.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _sources(folder: Path, sequences: int) -> Iterator[Path]:
    """One file of each kind at a time; the caller may delete it before requesting the next."""
    lengths = np.random.default_rng(0).lognormal(6, 1.5, sequences).astype(np.int32) + SENTENCES
    kinds: dict[str, Callable[[Path, NDArray[np.int32]], None]] = {
        "lengths.npy": np.save,
        "documents.idx": _write_documents,
        "sentences.idx": _write_sentences,
        "lengths.txt": _write_txt,
        "lengths.jsonl": _write_jsonl,
        "lengths.parquet": _write_parquet,
    }
    for name, write in kinds.items():
        write(folder / name, lengths)
        yield folder / name


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


if __name__ == "__main__":
    sys.exit(main())
