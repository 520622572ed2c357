"""Measured syncs of parameters and gradients, extended to a whole model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from seqplan.costs.fit.samples import SampleError

_TIMES = ("sync_ms", "optimizer_ms")


@dataclass(frozen=True, slots=True)
class SyncSample:
    """All-gather and reduce-scatter between as many pipelines as ``ranks`` have room for.

    ``layers``: decoder layers of each stage, which are run with embedding and head; every
    repetition in ms, of the slowest rank: nothing else runs next to it. ``optimizer_ms``: AdamW on
    the states that a rank owns.
    """

    tp: int
    pp: int
    ranks: int
    layers: int
    sync_ms: tuple[float, ...]
    optimizer_ms: tuple[float, ...]

    @property
    def key(self) -> tuple[int, int, int, int]:
        """The measured setting: layout, ranks and layers."""
        return self.tp, self.pp, self.ranks, self.layers


def fit_sync(samples: Iterable[SyncSample], layers: int) -> list[dict[str, Any]]:
    """Extend measured syncs to a model of ``layers`` layers: a profile's ``sync``.

    Of each layout and number of ranks a line through the medians over the stage's layers: what a
    layer more takes, never below 0, and what embedding, head and a start take. ``SampleError``
    where a layout was measured with one number of layers only, and that is not all of a stage.
    """
    together: dict[tuple[int, int, int], dict[int, list[SyncSample]]] = {}
    for sample in samples:
        of_layout = together.setdefault((sample.tp, sample.pp, sample.ranks), {})
        of_layout.setdefault(sample.layers, []).append(sample)
    entries = []
    for (tp, pp, ranks), by_layers in sorted(together.items()):
        stage = -(-layers // pp)
        if len(by_layers) == 1 and stage not in by_layers:
            raise SampleError(
                f"the sync of tp{tp}.pp{pp} on {ranks} ranks was measured with "
                f"{min(by_layers)} layers a stage only; the same seqplan profile measure goes on"
            )
        entry: dict[str, Any] = {"tp": tp, "pp": pp, "gpus": ranks}
        for field in _TIMES:
            medians = {
                number: median(ms for repeated in same for ms in getattr(repeated, field))
                for number, same in by_layers.items()
            }
            entry["ms" if field == _TIMES[0] else field] = round(
                _extend_to_stage(medians, stage), 3
            )
        entries.append(entry)
    return entries


def _extend_to_stage(by_layers: Mapping[int, float], stage: int) -> float:
    """Extend a time from the fewest and most layers measured to those of a stage."""
    few, many = min(by_layers), max(by_layers)
    if few == many:
        return by_layers[few]
    slope = max(by_layers[many] - by_layers[few], 0.0) / (many - few)
    return by_layers[few] + slope * (stage - few)
