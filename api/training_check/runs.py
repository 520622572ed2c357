"""A training check: the steps of plans on real ranks, beside one process that knows no plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from seqplan.api.training_check.check import Check, CheckedStep, checked_sizes, relative
from seqplan.api.training_check.plan_pipe import PlanPipe
from seqplan.api.training_check.processes import Message, RankProcesses, rank_environment, started
from seqplan.plans.format.plan_file import write_plans
from seqplan.plans.plan import Plan
from seqplan.profiler.model_sizes import ModelSizes

MODULE = "seqplan.runtime.train_check"

Progress = Callable[[str, int, int], None]
StepSeen = Callable[[CheckedStep], None]
"""Told of each step, in order, as soon as both runs have done it."""


def check_training(
    plans: Sequence[Plan],
    *,
    data: str | None,
    seed: int,
    dtype: str,
    progress: Progress,
    step_seen: StepSeen = lambda step: None,
) -> Check:
    """Train on real ranks under the plans, and beside them in one process; compare.

    ``data``: a token file, or None for tokens seeded by sample id. ``ValueError`` for data that
    the plans do not match, ``RuntimeError`` where a process fails.
    """
    sizes = checked_sizes(plans)
    with started() as processes:
        folder = Path(processes.folder)
        # Of their own: what else the file has is neither asked for nor looked at.
        with write_plans(folder / "plans.jsonl") as write:
            for plan in plans:
                write(plan)
        pipe = PlanPipe(folder / "reference-plans.jsonl")
        try:
            arguments = _arguments(plans, data, seed, dtype, sizes, folder)
            runs = _Runs(plans, processes, pipe, progress, step_seen)
            runs.start(arguments)
            runs.listen()
        finally:
            processes.end()
            pipe.close()
    return Check(dtype, sizes, tuple(runs.checked), runs.parameter, runs.parameter_difference)


class _Runs:
    """Both runs under way: what they have said, and which plans the one process may have.

    It gets a plan when the ranks have run it, so that it takes their cores as late as it can, and
    the last one when they are done, as it compares their parameters after that.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        processes: RankProcesses,
        pipe: PlanPipe,
        progress: Progress,
        step_seen: StepSeen,
    ) -> None:
        self.checked: list[CheckedStep] = []
        self.parameter, self.parameter_difference = "", math.nan
        self._plans = plans
        self._processes = processes
        self._pipe = pipe
        self._progress = progress
        self._step_seen = step_seen
        self._ranks = range(plans[0].world_size)
        self._reported: list[list[tuple[float, float, float]]] = [[] for _ in plans]
        self._expected: list[tuple[float, float]] = []

    def start(self, arguments: Sequence[str]) -> None:
        """Start the ranks and the one process, whose number is that of the ranks."""
        for rank in self._ranks:
            own = [*arguments, f"--plans={self._pipe.path.with_name('plans.jsonl')}"]
            self._processes.start(MODULE, own, rank_environment(rank, len(self._ranks)))
        own = [*arguments, f"--plans={self._pipe.path}", "--reference"]
        reference = self._processes.start(MODULE, own, {}, "the one process")
        self._processes.tell(reference, "begin")
        self._progress("starting ranks", 0, len(self._plans))

    def listen(self) -> None:
        """Take what they say until all are done."""
        done = 0
        for number, message in self._processes.messages(range(len(self._ranks) + 1)):
            if "done" in message:
                done += 1
                if done == len(self._ranks):
                    self._pipe.send(self._plans[-1])
            elif "port" in message:
                for other in self._ranks[1:]:
                    self._processes.tell(other, str(message["port"]))
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
        if len(self._reported[at]) == len(self._ranks):
            self._progress("steps on ranks", at + 1, len(self._plans))
            if at + 1 < len(self._plans):
                self._pipe.send(self._plans[at])

    def _show(self) -> None:
        at = len(self._expected) - 1
        step = _compared(self._plans[at], self._reported[at], *self._expected[at])
        self.checked.append(step)
        self._progress("steps of both", at + 1, len(self._plans))
        self._step_seen(step)


def _compared(
    plan: Plan, reported: Sequence[tuple[float, float, float]], loss: float, norm: float
) -> CheckedStep:
    losses, norms, times = zip(*reported, strict=True)
    return CheckedStep(
        plan=plan,
        loss=_furthest(losses, loss),
        reference_loss=loss,
        gradient_norm=_furthest(norms, norm),
        reference_gradient_norm=norm,
        measured_ms=max(times),
    )


def _furthest(values: Sequence[float], expected: float) -> float:
    if any(math.isnan(value) for value in values):
        return math.nan
    return max(values, key=lambda value: relative(value, expected))


def _arguments(
    plans: Sequence[Plan],
    data: str | None,
    seed: int,
    dtype: str,
    sizes: ModelSizes,
    folder: Path,
) -> list[str]:
    values: dict[str, object] = {
        "first-step": plans[0].step,
        "steps": len(plans),
        "parameters": folder / "parameters.npz",
        "seed": seed,
        "dtype": dtype,
        "hidden": sizes.hidden,
        "layers": sizes.layers,
        "heads": sizes.heads,
        "kv-heads": sizes.kv_heads,
        "ffn": sizes.ffn,
        "vocab": sizes.vocab,
    }
    if data is not None:
        values["data"] = data
    return [f"--{name}={value}" for name, value in values.items()]
