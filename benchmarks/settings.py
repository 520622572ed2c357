"""What the benchmarks run on: data, clusters and the machine, stated with every figure."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqplan import Profile, Workload, read_lengths
from seqplan.costs.model_sizes import parameters
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.sync.choice import choose_sync
from seqplan.planner.sync.times import SyncTimes

CODE = Path(__file__).parents[1] / "examples" / "data" / "code.npy"
PROFILE = "llama-32b-a800-80gb"
CLUSTERS = {64: 200_000, 1024: 3_200_000}
"""GPUs → tokens of a step."""


Lengths = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """A named array of sequence lengths."""

    name: str
    lengths: Lengths

    def draw(self, seed: int, count: int, *, cut: int | None = None) -> Lengths:
        """Draw ``count`` lengths with replacement, longer ones cut to ``cut`` tokens."""
        drawn = np.random.default_rng(seed).choice(self.lengths, count)
        return drawn if cut is None else np.minimum(drawn, cut)

    def draw_tokens(self, seed: int, tokens: int, count: int, *, cut: int | None = None) -> Lengths:
        """Draw lengths of no more than ``tokens`` in all, from ``count`` drawn ones."""
        drawn = self.draw(seed, count, cut=cut)
        return drawn[: int(np.searchsorted(np.cumsum(drawn), tokens))]

    def keep_within(self, context: int) -> Data:
        """Leave out sequences longer than the context."""
        return Data(self.name, self.lengths[self.lengths <= context])


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
