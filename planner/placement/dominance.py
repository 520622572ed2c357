"""Schemes that others replace at no loss."""

from __future__ import annotations

from seqplan.costs.scheme_model import SchemeModel
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.plans.scheme import Scheme


def drop_dominated(models: Models) -> dict[Scheme, SchemeModel]:
    """Leave schemes out that another one replaces at no loss, whatever is planned.

    It takes no more GPUs, stages, time for any micro-batch or padding, and holds no less. Of two
    equal ones the first in scheme order stays.
    """

    modes_of = {
        scheme: PipelineClass.from_model(model, 1).all_modes for scheme, model in models.items()
    }

    def replaces(other: SchemeModel, model: SchemeModel) -> bool:
        by, it = other.scheme, model.scheme
        return (
            by.gpus <= it.gpus
            and by.pp <= it.pp
            and it.unit % by.unit == 0
            and all(
                any(
                    as_fast.capacity >= mode.capacity
                    and as_fast.a <= mode.a
                    and as_fast.b <= mode.b
                    and as_fast.c <= mode.c
                    for as_fast in modes_of[by]
                )
                for mode in modes_of[it]
            )
        )

    left: dict[Scheme, SchemeModel] = {}
    for scheme, model in sorted(models.items()):
        if any(replaces(other, model) for other in left.values()):
            continue
        left = {s: other for s, other in left.items() if not replaces(model, other)}
        left[scheme] = model
    return left
