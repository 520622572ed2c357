"""Hugging Face causal language models under sequence-parallel plans.

Read ``hosting`` and ``job`` first, what a program calls, with ``evaluation`` (the model between
steps); then ``hosted`` (the model as a step calls it),
``attention`` (what transformers' layers attend with), ``inspection`` with ``support`` and
``probe`` (detection of computations that are not exact), ``launch``, ``progress`` and
``report``. Needs the extra ``huggingface``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.huggingface.hosting import host
    from seqplan.runtime.huggingface.job import Job
    from seqplan.runtime.huggingface.report import StepReport

_HOMES = {
    "hosting": ("host",),
    "job": ("Job",),
    "report": ("StepReport",),
}

__all__ = [
    "Job",
    "StepReport",
    "host",
]


_names = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> object:
    """Load a name at first use; ``ImportError`` names a missing extra."""
    try:
        return _names(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "transformers":
            raise
        needs = "pip install 'seqplan[runtime,huggingface]'"
        raise ImportError(f"hosting models of transformers needs it: {needs}") from None
