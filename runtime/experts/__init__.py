"""Expert parallelism: blocks of ranks that hold all experts together, and their exchanges.

Read ``blocks`` (a rank's place in its block, and the split of a model's experts), ``dispatch``
(tokens to the ranks of their experts and back), then ``micro_steps`` (micro-steps in which a rank
has no tokens). Rank r holds the experts of index r mod E for the whole job (``plans.experts``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.experts.blocks import ExpertBlocks as ExpertBlocks
    from seqplan.runtime.experts.blocks import SplitExperts as SplitExperts
    from seqplan.runtime.experts.blocks import split_experts as split_experts
    from seqplan.runtime.experts.dispatch import dispatch_tokens as dispatch_tokens

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
