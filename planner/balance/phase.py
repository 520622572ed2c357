"""What a sample has to do in a phase of a step, such as a vision encoder or a language model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from seqplan.costs.latency import Latency
from seqplan.planner.argument_checks import check_list, read_whole_number
from seqplan.planner.placement.fleet import Floats, Ints
from seqplan.plans.load import PhaseLoad

_NESTED = (Sequence, np.ndarray)


@dataclass(frozen=True)
class Phase:
    """A phase, and the sequences that each sample has in it.

    ``sequences``: by sample a number of tokens, 0 for none, or a list of them, such as the patches
    of each image; each attends to itself. ``cost``: of a micro-batch (``Cost``); one without tokens
    in the phase takes no time in it. ``capacity``: tokens of a micro-batch in the phase, None if it
    holds any number. ``TypeError`` and ``ValueError`` for values that are no tokens, cost or
    capacity, and for a sample that a micro-batch does not hold.
    """

    name: str
    sequences: Sequence[int | Sequence[int]]
    cost: Latency
    capacity: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"load: name {self.name!r}. Give text, such as 'vision'")
        if not isinstance(self.cost, Latency):
            raise TypeError(f"load {self.name}: cost {self.cost!r}. Give a Cost")
        if self.capacity is not None:
            capacity = read_whole_number(f"load {self.name}: capacity", self.capacity)
            object.__setattr__(self, "capacity", capacity)
        if not len(self.sequences):
            raise ValueError(f"load {self.name}: has no samples. Give tokens for each sample")
        sample = int(self.tokens.argmax())  # which rejects other values
        if self.capacity is not None and int(self.tokens[sample]) > self.capacity:
            raise ValueError(
                f"load {self.name}: sample {sample} has {self.tokens[sample]} tokens, a "
                f"micro-batch holds {self.capacity}. Split it or give more capacity"
            )

    @cached_property
    def _of_samples(self) -> tuple[Ints, Floats]:
        kinds = set(map(type, self.sequences)) - {type(np.ma.masked)}
        nested = {kind for kind in kinds if issubclass(kind, _NESTED)}
        listed: list[Any] = [
            entry if type(entry) in nested else (entry,) for entry in self.sequences
        ]
        lengths = list(chain.from_iterable(listed))
        kinds = set(map(type, lengths))
        if bool in kinds or not all(issubclass(kind, int | np.integer) for kind in kinds):
            self._reject(listed)
        if min(lengths, default=0) < 0:
            self._reject(listed)
        owners = np.repeat(np.arange(len(listed)), list(map(len, listed)))
        tokens: Ints = np.zeros(len(self.sequences), dtype=np.int64)
        work: Floats = np.zeros(len(self.sequences))
        array = np.array(lengths, dtype=np.int64)
        np.add.at(tokens, owners, array)
        np.add.at(work, owners, self.cost.work_ms(array))
        return tokens, work

    def _reject(self, listed: Iterable[Iterable[object]]) -> NoReturn:
        """Raise for the first length that is no number of tokens."""
        for sample, lengths in enumerate(listed):
            for length in lengths:
                if isinstance(length, bool) or not isinstance(length, int | np.integer):
                    raise TypeError(
                        f"load {self.name}: sample {sample} has {length!r}. Give tokens as whole "
                        "numbers"
                    )
                if length < 0:
                    raise ValueError(
                        f"load {self.name}: sample {sample} has {length} tokens. Give 0 or more"
                    )
        raise AssertionError("every length is a number of tokens")

    def take(self, samples: Iterable[int]) -> Phase:
        """Return the phase of these samples only, in this order."""
        return replace(self, sequences=[self.sequences[sample] for sample in samples])

    @property
    def tokens(self) -> Ints:
        """Return the tokens of each sample, (samples,)."""
        return self._of_samples[0]

    @property
    def work_ms(self) -> Floats:
        """Return the work of each sample (ms), (samples,)."""
        return self._of_samples[1]


def list_loads(phases: Sequence[Phase], samples: int) -> tuple[PhaseLoad, ...]:
    """Return phases before the language model as the loads of a plan.

    ``samples``: how many there are. Times are whole microseconds, as in plans. ``TypeError`` for
    values that are no phases, ``ValueError`` for other numbers of samples.
    """
    entries = "Phase(name, sequences, cost)"
    check_list("loads", phases, entries)
    if not all(isinstance(phase, Phase) for phase in phases):
        raise TypeError(f"loads: {phases!r:.60}. Give a list of {entries}")
    for phase in phases:
        if len(phase.sequences) != samples:
            raise ValueError(
                f"load {phase.name}: has {len(phase.sequences)} samples, there are {samples} "
                "lengths. Give the same samples to each"
            )
    return tuple(
        PhaseLoad(
            phase.name,
            tuple(phase.tokens.tolist()),
            tuple(np.round(phase.work_ms, 3).tolist()),
            round(phase.cost.c, 3),
            phase.capacity,
        )
        for phase in phases
    )
