"""How long parameters and gradients are synchronized, by the layouts of a strategy's pipelines.

A layout is the ⟨tp, pp⟩ of a scheme: how parameters are split. Pipelines of one layout sync
like equal replicas, whatever their Ulysses and ring degrees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from seqplan.plans.scheme import Scheme, Strategy

SIMILAR = 0.01
"""Share by which the sync of layouts may differ and count as taking equally long in bounds."""

GATHERED_SHARE = 1 / 3
"""Of the sync: parameters in bf16, if gradients are reduce-scattered in fp32."""

Layout = tuple[int, int]
"""⟨tp, pp⟩: how a pipeline splits parameters."""


@dataclass(frozen=True)
class Family:
    """Strategies of these layouts, and a time that their sync takes at least (not hidden)."""

    layouts: frozenset[Layout]
    sync_ms: float


@dataclass(frozen=True)
class SyncTimes(ABC):
    """Times of one iteration in ms; ``overlap``: share of the sync hidden by computation.

    Of plans with stages, or whose groups regroup, only of the all-gather: reduce-scatters wait for
    the last pass of a rank (``can_overlap_reduction``).

    ``source``: where the times come from, a sentence for people. ``ValueError`` for a negative time
    or a share outside 0 … 1.
    """

    overlap: float
    optimizer_ms: float
    source: str

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self) if field.name.endswith("_ms")):
            value = getattr(self, name)
            if isinstance(value, float | int) and not 0 <= value < float("inf"):
                raise ValueError(f"{name} must be a number of 0 or more, not {value}")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap must be a share from 0 to 1, not {self.overlap}")

    @abstractmethod
    def whole_ms(self, layouts: Collection[Layout]) -> float:
        """Return all-gather and reduce-scatter between these layouts, hidden or not."""

    @abstractmethod
    def families(self, layouts: Collection[Layout], similar: float = SIMILAR) -> list[Family]:
        """List families of strategies of these layouts, by their sync time.

        Each strategy is in one that takes no longer than the strategy itself.
        """

    def compute_exposed_ms(self, layouts: Collection[Layout], *, regrouping: bool = False) -> float:
        """Return the sync that is not hidden; ``regrouping``: ranks change their groups."""
        return self.whole_ms(layouts) * (1 - self._hidden_share(layouts, regrouping))

    def _hidden_share(self, layouts: Collection[Layout], regrouping: bool = False) -> float:
        reduction_waits = regrouping or any(pp > 1 for _, pp in layouts)
        return self.overlap * (GATHERED_SHARE if reduction_waits else 1.0)

    def of_strategy_ms(self, strategy: Strategy) -> float:
        """Return the time of an iteration next to computation and optimizer."""
        return self.compute_exposed_ms(layouts_of(scheme for scheme, _ in strategy.counts))

    def extra_ms(self, strategy: Strategy, than: Strategy) -> float:
        """Return how much more one strategy's sync takes than another's; may be negative."""
        return self.of_strategy_ms(strategy) - self.of_strategy_ms(than)


@dataclass(frozen=True)
class GivenSyncTimes(SyncTimes):
    """Two times: between equal replicas, and between pipelines of different layouts."""

    homogeneous_ms: float
    heterogeneous_ms: float

    def whole_ms(self, layouts: Collection[Layout]) -> float:
        """Return the time between equal replicas or between different ones."""
        return self.heterogeneous_ms if len(layouts) > 1 else self.homogeneous_ms

    def families(self, layouts: Collection[Layout], similar: float = SIMILAR) -> list[Family]:
        """List each layout alone, and all of them; all alone where different ones cost no more."""
        whole = Family(frozenset(layouts), self.heterogeneous_ms * (1 - self.overlap))
        alone = {layout: self.compute_exposed_ms([layout]) for layout in sorted(layouts)}
        if min(alone.values(), default=0.0) >= whole.sync_ms:
            return [whole]
        single = [Family(frozenset({layout}), ms) for layout, ms in alone.items()]
        return [*single, *([whole] if len(layouts) > 1 else [])]


@dataclass(frozen=True)
class LayoutSyncTimes(SyncTimes):
    """A time for each layout; between different ones, that of the layout that takes longest.

    ``alone_ms``: times of layouts that take less when all pipelines are of that layout;
    ``collectives``: of every layout, as other trainers (see ``derive_sync``).
    """

    by_layout_ms: tuple[tuple[Layout, float], ...]
    alone_ms: tuple[tuple[Layout, float], ...] = ()
    collectives: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for layout, time in (*self.by_layout_ms, *self.alone_ms):
            if not 0 <= time < float("inf"):
                raise ValueError(
                    f"the sync of {layout_text(layout)} must be a number of 0 or more ms, "
                    f"not {time}"
                )
        for layout, time in self.alone_ms:
            if not time <= self._times_ms.get(layout, -1.0):
                raise ValueError(
                    f"the sync of {layout_text(layout)} alone, {time} ms, must not be more than "
                    "that next to others"
                )

    @cached_property
    def _times_ms(self) -> dict[Layout, float]:
        return dict(self.by_layout_ms)

    @cached_property
    def _alone_ms(self) -> dict[Layout, float]:
        return dict(self.by_layout_ms) | dict(self.alone_ms)

    def whole_ms(self, layouts: Collection[Layout]) -> float:
        """Return the longest of the layouts' times; ``KeyError`` for one without a time."""
        times = self._alone_ms if len(set(layouts)) == 1 else self._times_ms
        return max((times[layout] for layout in layouts), default=0.0)

    def families(self, layouts: Collection[Layout], similar: float = SIMILAR) -> list[Family]:
        """List layouts with a time alone, then those that take no longer than each.

        Without the hidden part. Times within the share ``similar`` of each other make one family,
        with the least of them.
        """
        alone = [layout for layout, _ in self.alone_ms if layout in layouts]
        families = [
            Family(frozenset({layout}), self.compute_exposed_ms([layout])) for layout in alone
        ]
        times = {
            layout: self._times_ms[layout] * (1 - self._hidden_share([layout]))
            for layout in layouts
        }
        rising = sorted({times[layout] for layout in layouts})
        while rising:
            near = [time for time in rising if time <= rising[0] * (1 + similar)]
            rising = rising[len(near) :]
            members = frozenset(layout for layout in layouts if times[layout] <= near[-1])
            if len(members) > 1 or not members <= set(alone):
                families.append(Family(members, near[0]))
        return families


NO_SYNC = GivenSyncTimes(0.0, 0.0, "no sync", 0.0, 0.0)
"""Choose by forward and backward alone."""


def layouts_of(schemes: Iterable[Scheme]) -> frozenset[Layout]:
    """Collect the layouts of these schemes."""
    return frozenset((scheme.tp, scheme.pp) for scheme in schemes)


def layout_text(layout: Layout) -> str:
    """Write a layout as schemes are written: ``tp4``, ``tp2.pp4``."""
    return str(Scheme(*layout))


def parse_layout(text: str) -> Layout:
    """Read what ``layout_text`` writes; ``ValueError`` for other text."""
    scheme = Scheme.parse(text)
    if scheme.sp > 1:
        raise ValueError(
            f"layout must be tp and pp, as tp4.pp2: {text!r}. Ulysses and ring differ within one"
        )
    return scheme.tp, scheme.pp


def sync_fields(sync: SyncTimes) -> dict[str, Any]:
    """Write times of synchronization as a proposal's JSON has them."""
    fields = asdict(sync)
    if isinstance(sync, LayoutSyncTimes):
        del fields["by_layout_ms"], fields["alone_ms"]
        if not fields["collectives"]:
            del fields["collectives"]
        alone = {layout: {"alone_ms": ms} for layout, ms in sync.alone_ms}
        fields["by_layout"] = [
            {"tp": tp, "pp": pp, "ms": ms, **alone.get((tp, pp), {})}
            for (tp, pp), ms in sync.by_layout_ms
        ]
    return dict(fields)
