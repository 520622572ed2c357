"""Software stacks of trainers: how fast products and memory-bound kernels run, and launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """What a trainer's software adds to, or saves of, the time that a device needs.

    - ``products``: rate of large products over that of ``Hardware.matmul_efficiency``, by
      generation of the device; 1 for others.
    - ``memory_bound``: time of norms, positions, activation functions and residual sums over that
      of kernels that fuse each of them.
    - ``launch_us``: from one kernel's end to the next one's start, if nothing hides it.
    - ``forward``, ``backward``: kernels of a layer; ``ring_step``: those of a ring step in a pass.
    - ``logit_bytes``: of a logit of a whole or fused loss, at most at a time.
    - ``keeps_gradients``: whether gradients of a recomputed layer are kept next to its activations.
    - ``checked``: generations of devices with published runs of this stack in the tables.
    """

    name: str
    products: Mapping[str, float] = field(default_factory=dict)
    memory_bound: float = 1.0
    launch_us: float = 5.0
    forward: int = 20
    backward: int = 40
    ring_step: int = 2
    logit_bytes: int = 10
    keeps_gradients: bool = False
    checked: frozenset[str] = frozenset()

    def is_checked(self, generation: str) -> bool:
        """Return whether the tables have runs of the stack on this generation of devices."""
        return generation in self.checked


COMPILED = Stack(name="compiled", checked=frozenset({"ampere", "hopper"}))
"""Fused norms and activation functions, one kernel each: the constants of every other page here.
Its runs are llm-foundry's."""

MEGATRON = Stack(
    name="megatron",
    products={"hopper": 1.17, "blackwell": 1.17},
    memory_bound=0.7,
    checked=frozenset({"hopper", "blackwell"}),
)
"""NVIDIA's: 0.77 of the peak in large products on H100, norms fused with residual sums and casts.
Both were set with rows of an even hash on H100."""

EAGER = Stack(
    name="eager",
    products={"ampere": 0.9},
    memory_bound=1.6,
    launch_us=9.0,
    forward=60,
    backward=120,
    ring_step=118,
    logit_bytes=14,
    keeps_gradients=True,
    checked=frozenset({"ampere"}),
)
"""PyTorch without a compiler: every operation is a kernel that the host launches in time. Launches
are set by Megatron's published benchmark of dynamic context parallelism (12 layers of 2,048), which
takes 19 ms a micro-batch and 25.4 ms more for each further rank of a ring. The rate of products on
A100 was set with rows of an even hash; the factor of memory-bound kernels is assumed. A logit is in
bf16 and fp32, with its log-softmax and the gradient of that in fp32."""

MEGATRON_GRAPHS = replace(
    MEGATRON, name="megatron-graphs", launch_us=0.5, checked=frozenset({"blackwell"})
)
"""Megatron with the whole iteration in a CUDA graph: the host launches nothing."""

STACKS = {stack.name: stack for stack in (EAGER, COMPILED, MEGATRON, MEGATRON_GRAPHS)}
"""Stacks by the names of ``--stack``."""

DEFAULT_STACK = COMPILED.name
