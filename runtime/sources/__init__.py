"""A rank's steps: its views of the plans, fetched ahead, and agreed on by all ranks.

Read ``iterate_steps`` first, which opens any source; then ``source``, the contract of all
sources and the one of plan files; ``http_source`` (a planning service, over ``http_connection``,
with ``acknowledgements`` kept on disk) and ``fan_out`` (one rank requests for all), ``agreement``
and, which puts them together, ``consumer``; ``in_process`` for plans that are made on the ranks
themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.sources.consumer import PlanConsumer
    from seqplan.runtime.sources.fan_out import FanOutSource, open_job
    from seqplan.runtime.sources.http_source import HttpSource
    from seqplan.runtime.sources.in_process import iterate_agreed_steps
    from seqplan.runtime.sources.iterate_steps import Steps
    from seqplan.runtime.sources.source import FileSource, PlanSource

_HOMES = {
    "consumer": ("PlanConsumer",),
    "fan_out": ("FanOutSource", "open_job"),
    "http_source": ("HttpSource",),
    "in_process": ("iterate_agreed_steps",),
    "iterate_steps": ("Steps",),
    "source": ("FileSource", "PlanSource"),
}

__all__ = [
    "FanOutSource",
    "FileSource",
    "HttpSource",
    "PlanConsumer",
    "PlanSource",
    "Steps",
    "iterate_agreed_steps",
    "open_job",
]

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__ = lazy_names(__name__, _HOMES)
