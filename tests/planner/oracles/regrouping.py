"""Groups that regroup on two ranks, by enumeration."""

from itertools import product

from oracles.exhaustive import partitions

from seqplan.planner.placement.fleet import PipelineClass


def best_on_two_ranks(classes: tuple[PipelineClass, ...], lengths: list[int]) -> float:
    """Try every micro-batch, class and rank; those of both ranks go first, which costs nothing."""
    best = float("inf")
    for parts in partitions(lengths):
        for chosen in product(classes, repeat=len(parts)):
            together, alone = 0.0, []
            for pipeline_class, part in zip(chosen, parts, strict=True):
                if sum(map(pipeline_class.pad, part)) > pipeline_class.capacity:
                    break
                ms = sum(x * (pipeline_class.a * x + pipeline_class.b) for x in part)
                if pipeline_class.gpus == 2:
                    together += ms + pipeline_class.c
                else:
                    alone.append(ms + pipeline_class.c)
            else:
                for ranks in product((0, 1), repeat=len(alone)):
                    on_rank = [0.0, 0.0]
                    for rank, ms in zip(ranks, alone, strict=True):
                        on_rank[rank] += ms
                    best = min(best, together + max(on_rank))
    return best
