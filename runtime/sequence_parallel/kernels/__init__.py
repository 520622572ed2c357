"""Attention kernels behind one interface: pieces in, partial results out.

Read ``base`` first, a kernel's arguments and results; then ``registry``, which has them by name,
and a file for each: ``flash``, ``cudnn``, ``flex`` and ``magi`` on CUDA, ``cpu``, and ``blocks``
for what no other computes.
"""

from __future__ import annotations

from seqplan.runtime.sequence_parallel.kernels.base import Attended as Attended
from seqplan.runtime.sequence_parallel.kernels.base import Kernel as Kernel
from seqplan.runtime.sequence_parallel.kernels.base import Partial as Partial
from seqplan.runtime.sequence_parallel.kernels.base import PartialGradients as PartialGradients
from seqplan.runtime.sequence_parallel.kernels.base import Piece as Piece
from seqplan.runtime.sequence_parallel.kernels.base import Pieces as Pieces
from seqplan.runtime.sequence_parallel.kernels.base import Rows as Rows
from seqplan.runtime.sequence_parallel.kernels.base import Scores as Scores
from seqplan.runtime.sequence_parallel.kernels.blocks import BlockKernel as BlockKernel
from seqplan.runtime.sequence_parallel.kernels.cpu import CpuKernel as CpuKernel
from seqplan.runtime.sequence_parallel.kernels.registry import choose_kernel as choose_kernel
from seqplan.runtime.sequence_parallel.kernels.registry import (
    choose_kernel_for_heads as choose_kernel_for_heads,
)
from seqplan.runtime.sequence_parallel.kernels.registry import explain_kernels as explain_kernels
from seqplan.runtime.sequence_parallel.kernels.registry import find_kernel as find_kernel
