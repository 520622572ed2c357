"""Cells of the lengths of the longest micro-steps, for the bound over all plans."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cell:
    """Plans whose longest micro-steps have lengths in intervals; a total that none is below.

    ``lengths``: the least and the largest length (ms) of each of the longest micro-steps;
    ``fewest``: the least number of micro-steps, or with ``exact`` their number, one more than
    lengths; ``refuted_ms``: the total; ``solved``: whether a program was solved for it.
    """

    lengths: tuple[tuple[float, float], ...]
    fewest: int
    exact: bool
    refuted_ms: float
    solved: bool = False

    @property
    def kind(self) -> tuple[int, bool]:
        """Return all that prices of a cell depend on."""
        return len(self.lengths), self.exact

    @property
    def width_ms(self) -> float:
        """Return the largest width."""
        return max((high - low for low, high in self.lengths), default=0.0)

    def left_ms(self, total_ms: float, stages: int) -> float:
        """Return the time (ms) that is left for the others of a total at most."""
        if not self.lengths:
            return total_ms / stages
        lows = [low for low, _ in self.lengths]
        return total_ms - sum(lows) - (stages - 1) * lows[0]

    def halve(self) -> list[Cell]:
        """Cut the cell in the middle of its widest length: the shorter half first."""
        widths = [high - low for low, high in self.lengths]
        place = widths.index(max(widths))
        low, high = self.lengths[place]
        middle = (low + high) / 2
        before, after = self.lengths[:place], self.lengths[place + 1 :]
        return [
            replace(self, lengths=(*before, half, *after), solved=False)
            for half in ((low, middle), (middle, high))
        ]

    def add_length(self, reached_ms: float, least_ms: float, stages: int) -> Cell:
        """Distinguish one more length, any that a plan within ``reached_ms`` may have.

        It is at most the one before, the mean of the rest at least if their number is exact, and
        leaves ``least_ms`` for each of the others.
        """
        others = self.fewest - len(self.lengths) - 1
        low_ms, high_ms = least_ms, self.left_ms(reached_ms, stages) - others * least_ms
        if self.lengths:
            high_ms = min(high_ms, self.lengths[-1][1])
        else:
            high_ms = (reached_ms - others * least_ms) / stages
        if self.exact:
            highs = [high for _, high in self.lengths]
            drained_ms = (stages - 1) * highs[0] if highs else 0.0
            number = others + (1 if highs else stages)
            low_ms = max(low_ms, (self.refuted_ms - sum(highs) - drained_ms) / number)
        lengths = (*self.lengths, (low_ms, max(low_ms, high_ms)))
        return replace(self, lengths=lengths, solved=False)

    def distinguish_longest(self, reached_ms: float, least_ms: float, stages: int) -> list[Cell]:
        """Divide a pool by the length of its longest micro-step: one other or several."""
        number = len(self.lengths) + 2
        parts = [replace(self, fewest=max(self.fewest, number + 1))]
        if self.fewest <= number:
            parts.append(replace(self, fewest=number, exact=True))
        return [part.add_length(reached_ms, least_ms, stages) for part in parts]
