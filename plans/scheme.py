"""A parallel scheme ⟨tp, pp, ulysses, ring⟩ and a strategy, a multiset of schemes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

_TEXT = re.compile(r"(tp|pp|u|r)(\d+)")
_NAMES = {"tp": "tp", "pp": "pp", "u": "ulysses", "r": "ring"}


@dataclass(frozen=True, order=True)
class Scheme:
    """How one model replica is deployed on ``tp · pp · ulysses · ring`` GPUs.

    Degrees are positive integers, powers of two or not; ``ValueError`` otherwise.
    """

    tp: int = 1
    pp: int = 1
    ulysses: int = 1
    ring: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ulysses", "ring"):
            degree = getattr(self, name)
            if type(degree) is not int or degree < 1:
                raise ValueError(f"scheme: {name} must be a positive integer, not {degree!r}")

    @cached_property
    def gpus(self) -> int:
        """Return the GPUs of one pipeline of this scheme."""
        return self.tp * self.pp * self.ulysses * self.ring

    @property
    def sp(self) -> int:
        """Return the sequence-parallel degree, ulysses · ring."""
        return self.ulysses * self.ring

    @property
    def stage_gpus(self) -> int:
        """Return the GPUs of one pipeline stage, tp · ulysses · ring."""
        return self.tp * self.ulysses * self.ring

    def __str__(self) -> str:
        """Write the short text form, degrees of one left out: ``tp4.pp2``, ``u8.r2``, ``tp1``."""
        parts = [
            f"{short}{getattr(self, name)}"
            for short, name in _NAMES.items()
            if getattr(self, name) > 1
        ]
        return ".".join(parts) or "tp1"

    @classmethod
    def parse(cls, text: str) -> Scheme:
        """Read the text form of ``str(scheme)``; ``ValueError`` names the wrong part."""
        degrees: dict[str, int] = {}
        for part in text.strip().split("."):
            match = _TEXT.fullmatch(part)
            if not match or _NAMES[match[1]] in degrees:
                raise ValueError(
                    f"scheme {text!r}: {part!r} is not understood. Write degrees of tp, pp, u and "
                    "r, as tp4.pp2 or u8.r2"
                )
            degrees[_NAMES[match[1]]] = int(match[2])
        return cls(**degrees)

    def as_dict(self) -> dict[str, int]:
        """Return the plan format's object for this scheme."""
        return {"tp": self.tp, "pp": self.pp, "ulysses": self.ulysses, "ring": self.ring}

    @classmethod
    def from_dict(cls, fields: Mapping[str, int]) -> Scheme:
        """Read a plan format's object; ``ValueError`` on a missing or foreign field."""
        if not isinstance(fields, Mapping) or set(fields) != {"tp", "pp", "ulysses", "ring"}:
            raise ValueError(f"scheme: must be tp, pp, ulysses and ring: {fields!r}")
        return cls(**fields)

    @property
    def unit(self) -> int:
        """Return the tokens to whose multiples sequences are padded: 2·ring, 1 without a ring."""
        return 1 if self.ring == 1 else 2 * self.ring

    def pad_sequence(self, length: int) -> int:
        """Compute the tokens that a sequence may occupy, counted over the whole stage.

        Zigzag cuts a sequence at ``c·length // (2·ring)``; a chunk has at most
        ``ceil(length / (2·ring))`` tokens, so the fullest ring rank holds at most
        ``2·ceil(length / (2·ring))``. Without a ring nothing is padded.
        """
        return -(-length // self.unit) * self.unit

    def pad_micro_batch(self, lengths: Iterable[int]) -> int:
        """Compute the tokens that a micro-batch occupies in memory, counted over the whole stage.

        The sum of the padded lengths, rounded up so that every rank of the stage holds the same
        whole number of tokens (Ulysses all-to-all and tensor-parallel activations split evenly).
        """
        total = sum(lengths) if self.ring == 1 else sum(map(self.pad_sequence, lengths))
        unit = self.stage_gpus
        return -(-total // unit) * unit

    def usable_capacity(self, max_len: int) -> int:
        """Return the largest Σ padded lengths whose padded micro-batch fits ``max_len`` tokens."""
        return max_len - max_len % self.stage_gpus


@dataclass(frozen=True)
class Strategy:
    """A multiset of schemes: ``counts`` holds (scheme, number of pipelines), in sorted order."""

    counts: tuple[tuple[Scheme, int], ...]

    def __post_init__(self) -> None:
        if list(self.counts) != sorted(self.counts, key=_order):
            raise ValueError(f"strategy: schemes are not in order: {self}. Sort them")
        if len({scheme for scheme, _ in self.counts}) != len(self.counts):
            raise ValueError(f"strategy: a scheme is listed twice: {self}. Raise its count")
        if any(type(count) is not int or count < 1 for _, count in self.counts):
            raise ValueError(f"strategy: counts must be positive integers: {self}")

    @classmethod
    def from_counts(cls, counts: Mapping[Scheme, int]) -> Strategy:
        """Make a strategy from scheme → number of pipelines; zero counts are dropped."""
        positive = ((scheme, int(count)) for scheme, count in counts.items() if count)
        return cls(tuple(sorted(positive, key=_order)))

    @classmethod
    def parse(cls, text: str) -> Strategy:
        """Read ``str(strategy)``, for example ``1×tp16 + 12×tp4`` (an x serves for ×)."""
        counts: dict[Scheme, int] = {}
        for part in text.split("+"):
            count, sign, scheme = part.strip().replace("×", "x").partition("x")
            if not sign or not count.strip().isdigit():
                raise ValueError(f"strategy {text!r}: must be COUNTxSCHEME + …: {part.strip()!r}")
            key = Scheme.parse(scheme)
            counts[key] = counts.get(key, 0) + int(count)
        return cls.from_counts(counts)

    @cached_property
    def gpus(self) -> int:
        """Return the GPUs in use, Σ count · gpus(scheme)."""
        return sum(scheme.gpus * count for scheme, count in self.counts)

    @property
    def pipelines(self) -> int:
        """Return the number of pipelines."""
        return sum(count for _, count in self.counts)

    @property
    def homogeneous(self) -> bool:
        """Whether all pipelines run one scheme."""
        return len(self.counts) == 1

    def __iter__(self) -> Iterator[Scheme]:
        """Yield every pipeline's scheme, in placement order."""
        for scheme, count in self.counts:
            for _ in range(count):
                yield scheme

    def __str__(self) -> str:
        return " + ".join(f"{count}×{scheme}" for scheme, count in self.counts)

    def as_list(self) -> list[dict[str, int]]:
        """Return the plan format's list: each scheme's degrees with its ``count``."""
        return [{**scheme.as_dict(), "count": count} for scheme, count in self.counts]

    @classmethod
    def from_list(cls, entries: Iterable[Mapping[str, int]]) -> Strategy:
        """Read a plan format's list; ``ValueError`` on a bad entry."""
        counts: dict[Scheme, int] = {}
        for entry in entries:
            if not isinstance(entry, Mapping) or "count" not in entry:
                raise ValueError(f"strategy: must be a scheme with a count: {entry!r}")
            scheme = Scheme.from_dict({k: v for k, v in entry.items() if k != "count"})
            if scheme in counts:
                raise ValueError(f"strategy: scheme {scheme} is listed twice. List it once")
            if type(entry["count"]) is not int or entry["count"] < 1:
                raise ValueError(f"strategy: count must be a positive integer, got {entry!r}")
            counts[scheme] = entry["count"]
        return cls.from_counts(counts)


def _order(entry: tuple[Scheme, int]) -> tuple[int, int, int, int, int]:
    """Order schemes for placement: large stages first, so that powers of two stay aligned."""
    scheme = entry[0]
    return (-scheme.stage_gpus, -scheme.gpus, -scheme.tp, -scheme.ulysses, -scheme.pp)
