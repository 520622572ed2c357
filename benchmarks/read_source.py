"""A process that reads one source of lengths: prints its seconds, imports included, and memory."""

import json
import resource
import sys
import time
from pathlib import Path


def read_source(path: Path) -> tuple[float, int]:
    """Import and read, which a person waits for; return seconds and peak memory (bytes)."""
    began = time.perf_counter()
    from seqplan.costs.lengths import read_lengths, summarise

    summarise(read_lengths([path]).values)
    return time.perf_counter() - began, _measure_peak()


def _measure_peak() -> int:
    """Return peak resident memory of this process, mapped pages of the source included."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would also count the parent, as it was when this process was forked.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) << 10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    print(json.dumps(read_source(Path(sys.argv[1]))))
