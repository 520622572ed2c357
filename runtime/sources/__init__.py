"""A rank's steps: its views of the plans, fetched ahead, and agreed on by all ranks.

Read ``iterate_steps`` first, which opens any source, and takes plans that are made on the ranks
themselves; then ``source``, the contract of all sources and the one of plan files; ``http_source``
(a planning service, over ``http_connection``, with ``acknowledgements`` kept on disk) and
``fan_out`` (one rank requests for all), ``agreement`` and, which puts them together, ``consumer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.sources.consumer import PlanConsumer as PlanConsumer
    from seqplan.runtime.sources.fan_out import FanOutSource as FanOutSource
    from seqplan.runtime.sources.fan_out import open_job as open_job
    from seqplan.runtime.sources.http_source import HttpSource as HttpSource
    from seqplan.runtime.sources.iterate_steps import Steps as Steps
    from seqplan.runtime.sources.iterate_steps import iterate_agreed_steps as iterate_agreed_steps
    from seqplan.runtime.sources.source import FileSource as FileSource
    from seqplan.runtime.sources.source import PlanSource as PlanSource

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
