"""Training of Hugging Face causal language models on plans, in the program's loop.

``attach`` prepares a model and returns the ``Job`` that trains it. Needs the extra ``huggingface``,
which is imported on first use. For transformers' ``Trainer`` see
``seqplan.integrations.huggingface_trainer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.huggingface.attach import attach as attach
    from seqplan.runtime.huggingface.expert_loading import load_pretrained as load_pretrained
    from seqplan.runtime.huggingface.job import Job as Job
    from seqplan.runtime.huggingface.job import StepReport as StepReport

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    _load, __all__ = lazy_names(__name__, __file__)

    def __getattr__(name: str) -> object:
        """Load a name at first use; ``ImportError`` names a missing extra."""
        try:
            return _load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "transformers":
                raise
            needs = "pip install 'seqplan[runtime,huggingface]'"
            raise ImportError(f"models of transformers are not installed: {needs}") from None
