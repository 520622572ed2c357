"""Tokens of a plan's samples: from data sets on disk to a rank's share of a micro-batch.

Read ``tokens`` first, the interface of token data and how a share is loaded; then ``targets``
(labels, weights and extras of the data), ``files`` and ``megatron``, the kinds of files that
are read, and ``micro_batch``, which a model gets. ``comparison``: whether all ranks read the same
tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqplan.plans.lazy_exports import lazy_names

if TYPE_CHECKING:
    from seqplan.runtime.data.files import token_file as token_file
    from seqplan.runtime.data.megatron import MegatronTokens as MegatronTokens
    from seqplan.runtime.data.targets import IndexedTargets as IndexedTargets
    from seqplan.runtime.data.targets import TargetData as TargetData
    from seqplan.runtime.data.targets import Targets as Targets
    from seqplan.runtime.data.tokens import IndexedTokens as IndexedTokens
    from seqplan.runtime.data.tokens import SeededTokens as SeededTokens
    from seqplan.runtime.data.tokens import TokenData as TokenData

if not TYPE_CHECKING:  # names that are not here are errors to type checkers
    __getattr__, __all__ = lazy_names(__name__, __file__)
