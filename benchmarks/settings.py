"""What the benchmarks run on: data, clusters and the machine, stated with every figure."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqplan.costs.lengths import read_lengths
from seqplan.costs.model_sizes import parameters
from seqplan.costs.profile import Profile
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import SyncTimes
from seqplan.planner.workload import Workload

CODE = Path(__file__).parents[1] / "examples" / "data" / "code.npy"
PROFILE = "llama-32b-a800-80gb"
CLUSTERS = {64: 200_000, 1024: 3_200_000}
"""GPUs → tokens of a step."""


@dataclass(frozen=True)
class Data:
    """A named array of sequence lengths."""

    name: str
    lengths: npt.NDArray[np.int64]


def data_sets(wikipedia: Path | None) -> list[Data]:
    """Return code lengths that ship, and Wikipedia lengths if their file is given."""
    sets = [Data("code", read_lengths([CODE]).values)]
    if wikipedia is None:
        print("Wikipedia lengths: not given (--wikipedia FILE), left out\n")
    else:
        sets.insert(0, Data("Wikipedia", read_lengths([wikipedia]).values))
    return sets


def published_schemes(name: str = PROFILE) -> Profile:
    """A shipped profile with the schemes that its source states, without derived ones."""
    return load_shipped(name).restrict(measured=True)


def published_sync(profile: Profile, gpus: int) -> SyncTimes:
    """Hydraulis' two totals (Table 1, 32B on 64 A800), in proportion to the parameters.

    16 times faster within a node, as NVLink's 400 GB/s are to a GPU's share of InfiniBand.
    """
    weights = parameters(profile.shape)
    assert weights is not None
    share = weights / 32.3e9 / (16 if gpus <= profile.gpus_per_node else 1)
    return choose_sync(profile, gpus, sync_ms=(1110.0 * share, 1710.0 * share))


def workload(gpus: int, context: int = 32768) -> Workload:
    """The cluster of a benchmark, with the published tokens of a step."""
    return Workload(gpus, context, CLUSTERS[gpus])


def machine() -> str:
    """One line on the machine."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{os.cpu_count()} cores, {model}, Python {platform.python_version()}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
