"""Whether all ranks read the same tokens, compared before their first step."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch.distributed as dist

from seqplan.plans.views.rank_view import RankView
from seqplan.runtime.communicators import gather_objects
from seqplan.runtime.data.targets import TargetData
from seqplan.runtime.data.tokens import TokenData
from seqplan.runtime.errors import RankLost

Prepared = TypeVar("Prepared")
Sample = tuple[int, int]
"""Id and planned length of a sample."""

SAMPLES = 8
"""Maximum number of samples that every rank reads for the comparison."""

WAIT_S = 30.0
"""Maximum wait for the preparation of a later step, in seconds."""


class DataPreparer(Generic[Prepared]):
    """Prepares views from token data that ranks can compare.

    One thread at a time reads the data, as steps are prepared in another one than they run in.
    """

    def __init__(self, data: TokenData, prepare: Callable[[RankView], Prepared]) -> None:
        self._data, self._prepare = data, prepare
        self._reading = threading.Lock()

    def __call__(self, view: RankView) -> Prepared:
        with self._reading:
            return self._prepare(view)

    @property
    def has_targets(self) -> bool:
        """Whether the data has labels and weights."""
        return isinstance(self._data, TargetData)

    def checksum(self, id: int, length: int) -> str | None:
        """Return a checksum of a sample's first tokens; None if they cannot be read here."""
        # Data that hangs in a later step is reported in that step.
        if not self._reading.acquire(timeout=WAIT_S):
            return None
        try:
            if self._data.length(id) < length:
                return None
            tokens = self._data.tokens(id, 0, length)
        except Exception:
            # A step that needs the sample raises this error and names the sample.
            return None
        finally:
            self._reading.release()
        return hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()


def find_other_tokens(
    prepare: Callable[[RankView], Any], view: RankView, group: dist.ProcessGroup | None
) -> str | None:
    """Return which rank reads other tokens or targets than another; None if none does.

    Collective over ``group`` (gloo). Every rank reads the first samples of the step. A sample that
    a rank does not hold is not compared there. Only a ``DataPreparer`` has data to compare.
    """
    if group is None or group.size() == 1 or not isinstance(prepare, DataPreparer):
        return None
    doing = "comparing data sets"
    try:
        everyone = gather_objects((prepare.has_targets, _first_sample(view)), group, doing)
        has_targets = [of_rank for of_rank, _ in everyone]
        samples = dict.fromkeys(sample for _, sample in everyone if sample is not None)
        compared = list(samples)[:SAMPLES]
        mine = [prepare.checksum(*sample) for sample in compared]
        checksums = gather_objects(mine, group, doing)
    except RankLost as loss:
        raise loss.in_step(view.step) from None
    if len(set(has_targets)) > 1:
        return (
            f"step {view.step}: rank {has_targets.index(True)} has data with labels, rank "
            f"{has_targets.index(False)} without. Give all ranks the same data set."
        )
    for (id, _), of_ranks in zip(compared, zip(*checksums, strict=True), strict=True):
        held = [(rank, text) for rank, text in enumerate(of_ranks) if text is not None]
        for rank, text in held:
            if text != held[0][1]:
                return (
                    f"step {view.step}: sample {id} has other tokens on rank {rank} than on rank "
                    f"{held[0][0]}. Give all ranks the same data set."
                )
    return None


def _first_sample(view: RankView) -> Sample | None:
    shares = (
        share
        for pipeline in view.pipelines
        for micro_batch in pipeline.micro_batches
        for share in micro_batch.sequences
    )
    return next(((share.id, share.length) for share in shares), None)
