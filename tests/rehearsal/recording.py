"""What a rehearsed rank does to its device, counted and with the line that does it."""

import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fake_streams import StorageOrder
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = tuple(f"{ROOT}/{name}/" for name in ("runtime", "plans", "profiler", "examples"))


def find_line() -> str:
    """The innermost line of the product on the stack, as file:line."""
    for frame in reversed(traceback.extract_stack(limit=60)):
        path = str(Path(frame.filename).resolve())
        if path.startswith(PRODUCT):
            return f"{path.removeprefix(f'{ROOT}/')}:{frame.lineno}"
    return "elsewhere"


@dataclass
class Recording:
    """Counts since ``restart``; ``events``: communication since the start, for all ranks to match.

    ``launches`` by operation; ``waits`` of the host and ``copies`` to the device by kind and line;
    ``faults``: what NCCL would reject; bytes are those of device storages, in blocks of 512.
    """

    launches: Counter[str] = field(default_factory=Counter)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    copies: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    events: list[tuple[object, ...]] = field(default_factory=list)
    order: StorageOrder = field(default_factory=StorageOrder)
    bytes_now: int = 0
    bytes_peak: int = 0

    def restart(self) -> None:
        """Count anew; events and bytes in use stay."""
        self.launches.clear()
        self.waits.clear()
        self.copies.clear()
        self.bytes_peak = self.bytes_now

    def wait(self, kind: str) -> None:
        """Count a wait of the host for the device."""
        self.waits[kind, find_line()] += 1

    def copy(self, *, pinned: bool) -> None:
        """Count a copy from the host to the device."""
        self.copies["pinned" if pinned else "pageable", find_line()] += 1

    def fault(self, kind: str) -> None:
        """Count what a device or NCCL would reject."""
        self.faults[kind, find_line()] += 1

    def use(self, read: Iterable[Tensor], written: Iterable[Tensor]) -> None:
        """Count a use of storages that another stream still reads or writes."""
        if fault := self.order.find_fault(read, written):
            self.fault(fault)

    def allocate(self, size: int) -> int:
        """Count a storage; returns its bytes in blocks, for ``free``."""
        blocks = -(-size // 512) * 512
        self.bytes_now += blocks
        self.bytes_peak = max(self.bytes_peak, self.bytes_now)
        return blocks

    def free(self, blocks: int) -> None:
        """Count the end of a storage."""
        self.bytes_now -= blocks
