"""Which optimizers step on what owners hold, and several of them as one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from seqplan.runtime.states.unit_states import UnitStates

NEED_WHOLE_PARAMETERS = frozenset(
    {
        "APOLLO",
        "APOLLOAdamW",
        "APOLLO_Adam",
        "AdaMuon",
        "Adafactor",
        "AdamMini",
        "Adam_mini",
        "CAME",
        "Dion",
        "DistributedShampoo",
        "FusedLAMB",
        "FusedLamb",
        "GaLore",
        "GaLoreAdafactor",
        "GaLoreAdamW",
        "GaLoreAdamW8bit",
        "Kron",
        "LAMB",
        "LAMB32bit",
        "LAMB8bit",
        "LARS",
        "LARS32bit",
        "LARS8bit",
        "Lamb",
        "Lars",
        "Muon",
        "MuonWithAuxAdam",
        "NorMuon",
        "SM3",
        "Scion",
        "Shampoo",
        "SingleDeviceMuon",
        "SingleDeviceMuonWithAuxAdam",
        "SOAP",
    }
)
"""Classes of optimizers that look at a whole parameter: its matrix, its rows, its norm."""

NEED_ALL_PARAMETERS = frozenset(
    {
        "DAdaptAdaGrad",
        "DAdaptAdam",
        "DAdaptAdan",
        "DAdaptLion",
        "DAdaptSGD",
        "Prodigy",
    }
)
"""Classes of optimizers that estimate a rate from norms over all parameters."""


class JoinedOptimizer(torch.optim.Optimizer):
    """Several optimizers as one, such as Muon for matrices and AdamW for the rest.

    Its groups are theirs, one after the other, and so is its state: schedulers and checkpoints take
    it as any other. If a rank may have nothing of a part, give that part groups
    (``[{"params": parameters}]``), which may be empty. ``ValueError`` for none, and for a parameter
    that two of them have.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        if not optimizers:
            raise ValueError("no optimizer to join")
        self.optimizers = list(optimizers)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        # Only to be checked: some may have names of their parameters, and some none.
        super().__init__([{"params": group["params"]} for group in groups], {})
        self.param_groups = groups
        self.state = defaultdict(dict)
        for optimizer in self.optimizers:
            self.state.update(optimizer.state)
        self._share()

    def _share(self) -> None:
        """Let the parts step on this one's groups and state."""
        first = 0
        for optimizer in self.optimizers:
            last = first + len(optimizer.param_groups)
            optimizer.param_groups = self.param_groups[first:last]
            optimizer.state = self.state
            first = last

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step each of them; ``closure`` is called once, before."""
        loss = None if closure is None else closure()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss


def name_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Name an optimizer's class, or the classes that it joins."""
    if isinstance(optimizer, JoinedOptimizer):
        return " + ".join(name_optimizer(part) for part in optimizer.optimizers)
    return type(optimizer).__name__


def check_optimizer(optimizer: torch.optim.Optimizer, states: UnitStates) -> None:
    """Raise ``ValueError`` if an optimizer needs more of the parameters than a rank owns."""
    alone = all(unit.layout.ranks * unit.parts == 1 for unit in states.units)
    parts = optimizer.optimizers if isinstance(optimizer, JoinedOptimizer) else [optimizer]
    for part in parts:
        names = {kind.__name__ for kind in type(part).__mro__}
        if names & NEED_ALL_PARAMETERS and not alone:
            raise ValueError(
                f"{type(part).__name__} needs norms over all parameters, and a rank owns some. "
                "Use an optimizer with a given learning rate, such as AdamW"
            )
        if names & NEED_WHOLE_PARAMETERS and not states.whole_owners:
            raise ValueError(
                f"{type(part).__name__} needs whole parameters: sharding must be 'by_parameter', "
                "not 'flat'"
            )
