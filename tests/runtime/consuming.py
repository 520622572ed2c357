"""What ranks that consume plans have in common in the tests."""

import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from seqplan import RankView
from seqplan.runtime.data.tokens import SeededTokens, load_share
from seqplan.runtime.sources.consumer import PlanConsumer
from seqplan.runtime.sources.fan_out import FanOutSource
from seqplan.runtime.sources.source import FileSource

HERE_S = 20.0


def control_group(limit_s: float = 60) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s))
    assert group is not None
    return group


def prepare_tokens(view: RankView) -> int:
    """Loads the rank's tokens, as a trainer does; returns their sum."""
    data = SeededTokens(1000, 0)
    return sum(
        int(load_share(data, batch, step=view.step).tokens.sum())
        for pipeline in view.pipelines
        for batch in pipeline.micro_batches
    )


def consume(source: Any, rank: int, world_size: int, **more: Any) -> PlanConsumer[Any]:
    """A rank's consumer, which prepares tokens and has a new group, unless ``more`` differs."""
    if "control_group" not in more:
        more["control_group"] = control_group()
    place = {"rank": rank, "world_size": world_size}
    return PlanConsumer(source, **{"prepare": prepare_tokens, **place, **more})


def fan_out(path: Path, rank: int, world_size: int) -> FanOutSource:
    store = dist.distributed_c10d._get_default_store()
    return FanOutSource(lambda: FileSource(path), store, rank, world_size)


# What the ranks run


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("plans of")]
