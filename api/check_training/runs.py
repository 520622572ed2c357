"""A training check: plans on real ranks, compared with a single-process reference run."""

from __future__ import annotations

import math
import os
import queue
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from seqplan.api.check_training import check
from seqplan.api.check_training.processes import Message, RankServer
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.plans.format.codec import to_json
from seqplan.plans.format.plan_file import write_plans
from seqplan.plans.plan import Plan

ROUTER_LOSS = 0.01
"""Coefficient of the load-balancing loss of a model with experts."""

Progress = Callable[[str, int, int], None]
StepSeen = Callable[[check.CheckedStep], None]
"""Callback for each step, in order, as soon as both runs have done it."""


def check_training(
    request: check.CheckRequest,
    *,
    server: RankServer,
    progress: Progress,
    step_seen: StepSeen = lambda step: None,
) -> check.Check:
    """Train on real ranks under the plans, and the same in one process; compare.

    ``ValueError`` for data that the plans do not match, ``RuntimeError`` if a process fails;
    ``server`` has ended then.
    """
    plans = request.plans
    sizes = check.size_model(plans)
    with tempfile.TemporaryDirectory(dir=server.folder) as name:
        folder = Path(name)
        # A separate file: other steps of the given one are neither requested nor read.
        with write_plans(folder / "plans.jsonl") as write:
            for plan in plans:
                write(plan)
        pipe = PlanPipe(folder / "reference-plans.jsonl")
        runs = _Runs(plans, pipe, progress, step_seen)
        try:
            progress("starting ranks", 0, len(plans))
            runs.listen(server.messages(_settings(request, sizes, folder)))
        except BaseException:
            server.end()
            raise
        finally:
            pipe.close()
    compared = (tuple(runs.checked), runs.parameter, runs.parameter_difference)
    return check.Check(request.dtype, sizes, *compared)


class _Runs:
    """Both runs under way: their messages, and the plans available to the reference process.

    It gets a plan when the ranks have run it, so that it takes their cores as late as it can, and
    the last one when they are done, as it compares their parameters after that.
    """

    def __init__(
        self, plans: Sequence[Plan], pipe: PlanPipe, progress: Progress, step_seen: StepSeen
    ) -> None:
        self.checked: list[check.CheckedStep] = []
        self.parameter, self.parameter_difference = "", math.nan
        self._plans = plans
        self._pipe = pipe
        self._progress = progress
        self._step_seen = step_seen
        self._ranks = range(plans[0].world_size)
        self._reported: list[list[tuple[float, float, float]]] = [[] for _ in plans]
        self._saved: list[dict[tuple[int, int], int]] = [{} for _ in plans]
        self._expected: list[tuple[float, float]] = []

    def listen(self, messages: Iterable[tuple[int, Message]]) -> None:
        """Read the processes' messages, the reference's last, until all are done."""
        steps_done = 0
        for number, message in messages:
            if "done" in message:
                steps_done += 1
                if steps_done == len(self._ranks):
                    self._pipe.send(self._plans[-1])
            elif "parameter" in message:
                self.parameter = message["parameter"]
                self.parameter_difference = message["parameter_difference"]
            elif number in self._ranks:
                self._add_of_rank(message)
            else:
                self._expected.append((message["loss"], message["gradient_norm"]))
                self._show()

    def _add_of_rank(self, message: Message) -> None:
        at = message["step"] - self._plans[0].step
        self._reported[at].append((message["loss"], message["gradient_norm"], message["ms"]))
        for pipeline, place, saved in message["saved_bytes"]:
            most = self._saved[at].get((pipeline, place), 0)
            self._saved[at][pipeline, place] = max(saved, most)
        if len(self._reported[at]) == len(self._ranks):
            self._progress("steps on ranks", at + 1, len(self._plans))
            if at + 1 < len(self._plans):
                self._pipe.send(self._plans[at])

    def _show(self) -> None:
        at = len(self._expected) - 1
        step = _compare_step(
            self._plans[at], self._reported[at], self._saved[at], *self._expected[at]
        )
        self.checked.append(step)
        self._progress("steps of both", at + 1, len(self._plans))
        self._step_seen(step)


def _compare_step(
    plan: Plan,
    reported: Sequence[tuple[float, float, float]],
    saved: Mapping[tuple[int, int], int],
    loss: float,
    norm: float,
) -> check.CheckedStep:
    losses, norms, times = zip(*reported, strict=True)
    return check.CheckedStep(
        plan=plan,
        loss=_furthest(losses, loss),
        reference_loss=loss,
        gradient_norm=_furthest(norms, norm),
        reference_gradient_norm=norm,
        measured_ms=max(times),
        micro_batches=tuple(
            check.CheckedMicroBatch(
                pipeline,
                place,
                plan.pipelines[pipeline].micro_batches[place].recompute,
                saved_bytes,
            )
            for (pipeline, place), saved_bytes in sorted(saved.items())
        ),
    )


def _furthest(values: Sequence[float], expected: float) -> float:
    if any(math.isnan(value) for value in values):
        return math.nan
    return max(values, key=lambda value: check.relative(value, expected))


def _settings(request: check.CheckRequest, sizes: ModelSizes, folder: Path) -> dict[str, object]:
    """``CheckSettings`` of ``seqplan.runtime.check`` by name."""
    plans = request.plans
    return {
        "ranks": plans[0].world_size,
        "folder": str(folder),
        "plans": str(folder / "plans.jsonl"),
        "reference_plans": str(folder / "reference-plans.jsonl"),
        "first_step": plans[0].step,
        "steps": len(plans),
        "parameters": str(folder / "parameters.npz"),
        "data": request.data,
        "seed": request.seed,
        "dtype": request.dtype,
        "model": {
            **{name: getattr(sizes, name) for name in SIZES},
            **_experts(sizes),
        },
        # What experts keep depends on the tokens that they receive.
        "count_saved": any(map(check.has_modes, plans)) and sizes.architecture.dense,
    }


def _experts(sizes: ModelSizes) -> dict[str, object]:
    """Return the sizes of experts as ``ModelConfig`` has them; none if there are none."""
    special = sizes.architecture
    if not special.experts:
        return {}
    return {
        "experts": special.experts,
        "experts_per_token": special.experts_per_token,
        "expert_ffn": special.expert_ffn,
        "router_loss": ROUTER_LOSS,
    }


_ENDING_S = 0.02


class PlanPipe:
    """A pipe, made at ``path``, from which one process reads lines as they come.

    A thread writes them, as a pipe holds little and its reader may be busy.
    """

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="plans", daemon=True)
        self._thread.start()

    def send(self, plan: Plan) -> None:
        """Let the reader have one more plan."""
        self._lines.put(to_json(plan) + "\n")

    def close(self) -> None:
        """End the thread; the reader must have ended."""
        self._lines.put(None)
        while self._thread.is_alive():
            # Where the thread waits for a reader, to come or to read on, there is one for a moment.
            os.close(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK))
            self._thread.join(_ENDING_S)

    def _write(self) -> None:
        # A reader that is gone is somebody else's to notice.
        with suppress(BrokenPipeError), open(self.path, "w", encoding="utf-8") as pipe:
            while (line := self._lines.get()) is not None:
                pipe.write(line)
                pipe.flush()
