"""Where a rank's views come from: the contract of every source, and plan files.

Other sources: ``http_source`` (a planning service) and ``fan_out`` (one rank requests for all).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Protocol

from seqplan.plans.format.codec import from_json
from seqplan.plans.format.plan_file import check_sound
from seqplan.plans.plan import Plan
from seqplan.plans.views.placement import place_on_ranks
from seqplan.plans.views.rank_view import RankView, rank_view
from seqplan.runtime.errors import EndOfPlans, PlanError


class PlanSource(Protocol):
    """Views by step and rank.

    ``view`` is called from one thread, ``acknowledge`` from one, which may be another, ``close``
    from any.
    """

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        """Return the view of ``rank`` at ``step``, with the digest; wait for it to be planned.

        ``PlanTimeout`` when it is not there after ``timeout_s``, a retry is allowed;
        ``EndOfPlans`` after the last step; ``PlanError`` for anything else, a planner's failure
        with its text included, and when the source is closed meanwhile.
        """

    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        """Report that ``rank`` has done ``step`` by the plan with ``digest``. ``PlanError``.

        ``measured_ms``: time of its micro-batches, to compare with the prediction.
        """

    def close(self) -> None:
        """End a ``view`` that is waiting, and let go of files and connections. Idempotent."""


class JobSource(PlanSource, Protocol):
    """A source by which one rank can act for all."""

    def plan(self, step: int, timeout_s: float) -> tuple[Plan, str]:
        """Return the whole plan of ``step`` and its digest; waits and errors as for ``view``."""

    def acknowledge_all(
        self, step: int, digest: str | None, measured_ms: Mapping[int, float | None]
    ) -> None:
        """Acknowledge a step for several ranks at once, by rank with its time. ``PlanError``."""


def decode_plan(line: bytes, origin: str, *, strict: bool = True) -> Plan:
    """Read a plan and compare its digest and invariants. ``PlanError``; ``strict``: no new fields.

    ``origin``: of the plan, for messages.
    """
    plan = from_json(line, strict=strict, origin=origin)
    check_sound(plan, origin)
    return plan


def place_plan(plan: Plan, world_size: int, origin: str) -> Plan:
    """Place a plan on the ranks of a job (``place_on_ranks``). ``PlanError`` if it does not fit."""
    try:
        return place_on_ranks(plan, world_size)
    except ValueError as error:
        raise PlanError(f"{origin}: {error}") from None


_STEP = re.compile(rb'"step"\s*:\s*(\d+)')
_EXPERT_DEGREE = re.compile(rb'"expert_parallel"\s*:\s*(\d+)')
_TENSOR_DEGREE = re.compile(rb'"tp"\s*:\s*(\d+)')
_DIGEST = re.compile(rb'"digest"\s*:\s*"([^"]*)"')


class FileSource:
    """The plans of a plan file (JSON Lines), which is scanned for its steps once.

    A plan is decoded, and its digest and invariants checked, on request. ``world_size``:
    of the job, if known; plans are placed on its ranks (``place_on_ranks``), those for another
    number rejected. ``PlanError`` for a file that cannot be read or is no plan file.
    """

    def __init__(self, path: str | os.PathLike[str], *, world_size: int | None = None) -> None:
        self._path = Path(path)
        self._world_size = world_size
        self._lock = threading.Lock()
        self._last: tuple[Plan, str] | None = None
        self._tensor_degrees: set[int] = set()
        self._expert_degrees: set[int] = set()
        try:
            self._file: BinaryIO = open(path, "rb")  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise PlanError(f"{path}: {error.strerror}. Check the path") from None
        try:
            self._lines = self._scan()
        except BaseException:
            self._file.close()
            raise

    def tensor_degrees(self) -> list[int]:
        """List the tp degrees of the file's pipelines, for ``StagedLlama``.

        Ascending; read off the text, plans are not decoded.
        """
        return sorted(self._tensor_degrees)

    def expert_parallel(self) -> int:
        """Return the degree of expert parallelism of the file's plans, for ``StagedLlama``.

        Read off the text. ``PlanError`` if the plans have several degrees.
        """
        degrees = sorted(self._expert_degrees)
        if len(degrees) > 1:
            raise PlanError(
                f"{self._path}: expert_parallel: plans have several degrees: "
                f"{', '.join(map(str, degrees))}. Plan all steps with one"
            )
        return degrees[0] if degrees else 1

    def view(self, step: int, rank: int, timeout_s: float) -> RankView:
        plan, digest = self.plan(step, timeout_s)
        try:
            return rank_view(plan, rank, digest=digest)
        except ValueError as error:
            raise PlanError(f"{self._path}: step {step}: {error}") from None

    def plan(self, step: int, timeout_s: float) -> tuple[Plan, str]:
        with self._lock:
            if self._last is None or self._last[0].step != step:
                self._last = self._read(step)
            return self._last

    def acknowledge(
        self, step: int, rank: int, digest: str | None, measured_ms: float | None = None
    ) -> None:
        """Do nothing: nobody is waiting for it."""

    def acknowledge_all(
        self, step: int, digest: str | None, measured_ms: Mapping[int, float | None]
    ) -> None:
        """Do nothing: nobody is waiting for it."""

    def close(self) -> None:
        with self._lock:
            self._file.close()

    def _scan(self) -> dict[int, tuple[int, int]]:
        """Return the line number and the offset, in bytes, of each step; note the tp degrees."""
        steps: list[tuple[int, int, int]] = []
        offset = 0
        try:
            for number, line in enumerate(self._file, start=1):
                step = _STEP.search(line)
                if step is None:
                    # Not a plan: decoding it raises the error.
                    decode_plan(line, f"{self._path}:{number}")
                    raise PlanError(f"{self._path}:{number}: step: is missing")
                steps.append((int(step[1]), number, offset))
                # What selection considered comes after the pipelines.
                placed, _, _ = line.partition(b'"selection"')
                self._tensor_degrees.update(map(int, set(_TENSOR_DEGREE.findall(placed))))
                expert = _EXPERT_DEGREE.search(line)
                self._expert_degrees.add(1 if expert is None else int(expert[1]))
                offset += len(line)
        except OSError as error:
            raise PlanError(f"{self._path}: {error.strerror}") from None
        for (before, _, _), (step_number, number, _) in pairwise(steps):
            if step_number <= before:
                raise PlanError(
                    f"{self._path}:{number}: step: {step_number} does not follow step {before}"
                )
        return {step: (number, offset) for step, number, offset in steps}

    def _read(self, step: int) -> tuple[Plan, str]:
        if self._file.closed:
            raise PlanError(f"{self._path}: is closed")
        if not self._lines:
            raise PlanError(f"{self._path}: no plans. Name another file, or plan again")
        if step not in self._lines:
            last = max(self._lines)
            if step == last + 1:
                raise EndOfPlans(f"{self._path}: ends before step {step}")
            raise PlanError(
                f"{self._path}: has no plan of step {step}; its {len(self._lines)} steps are in "
                f"{min(self._lines)} … {last}"
            )
        number, offset = self._lines[step]
        try:
            self._file.seek(offset)
            line = self._file.readline()
        except OSError as error:
            raise PlanError(f"{self._path}: {error.strerror}") from None
        where = f"{self._path}:{number}"
        plan = decode_plan(line, where)
        if plan.step != step:
            raise PlanError(f"{where}: step: {plan.step}, but {step} when the file was opened")
        self._world_size = self._world_size or plan.world_size
        digest = _DIGEST.search(line)
        assert digest is not None  # from_json has compared it with the content
        return place_plan(plan, self._world_size, where), digest[1].decode()
