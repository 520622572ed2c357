"""What a rank holds of a model whatever it computes: before any activation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from seqplan.runtime.communicators import gather_objects
from seqplan.runtime.states.gradient_reduction import IN_FLIGHT
from seqplan.runtime.states.unit import Unit

MOMENTS = 2
"""Of a master parameter in AdamW, each as long as it is; another optimizer may keep others."""

TOLERANCE = 1.1
"""How much more may be held than a profile counts: slices are padded, and buffers are not in it."""


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes of this rank: ``parameters`` and ``gradients`` that it computes with.

    ``states`` that it owns: masters, moments as of AdamW, summed gradients if they are there during
    micro-batches; ``frozen``: the model's other tensors.
    """

    parameters: int
    gradients: int
    states: int
    frozen: int

    @property
    def total(self) -> int:
        """Sum of all."""
        return self.parameters + self.gradients + self.states + self.frozen

    def __str__(self) -> str:
        """One line for people."""
        parts = {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "owned states, with AdamW's": self.states,
            "frozen": self.frozen,
        }
        listed = ", ".join(f"{name} {_gib(size)}" for name, size in parts.items() if size)
        return f"a rank holds {_gib(self.total)} before activations: {listed}"

    def check_limit(self, counted: float, group: dist.ProcessGroup) -> None:
        """Raise ``ValueError`` if any rank's is well above what plans count on (bytes).

        Collective over ``group``, a CPU group; the same on every rank, and of the fullest.
        """
        everyone = gather_objects(self, group, "comparing what ranks hold")
        fullest = max(everyone, key=lambda held: held.total)
        if fullest.total > TOLERANCE * counted:
            raise ValueError(
                f"{fullest}; the profile that plans are made with counts {_gib(counted)}: plan "
                "with a profile of this model, dtype and number of GPUs"
            )


def count_held_bytes(units: Iterable[Unit], others: Iterable[Tensor] = ()) -> HeldBytes:
    """Count the bytes of ``units`` as laid out now and of ``others``, each once.

    Gradients that are not kept count as the largest units that are held at a time, with what
    their owners receive.
    """
    parameters = gradients = states = 0
    passing: list[int] = []
    ours = set()
    for unit in units:
        parameters += unit.flat.nbytes
        if unit.keeps_gradient:
            gradients += unit.gradient.nbytes
        else:
            passing.append((unit.padded + unit.master.numel()) * unit.exact.itemsize)
        # The summed gradient is there once activations are gone, or with passing gradients always.
        summed = 0 if unit.keeps_gradient else unit.master.nbytes
        states += (1 + MOMENTS) * unit.master.nbytes + summed
        ours.add(unit.flat.untyped_storage().data_ptr())
    gradients += sum(sorted(passing)[-IN_FLIGHT - 1 :])
    storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in others}
    frozen = sum(
        tensor.untyped_storage().nbytes()
        for address, tensor in storages.items()
        if address not in ours
    )
    return HeldBytes(parameters, gradients, states, frozen)


def _gib(size: float) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**28 else f"{size / 2**20:.1f} MiB"
