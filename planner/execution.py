"""How the ranks execute a step: what may change within it, and whether they run in lockstep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from seqplan.planner.errors import OptionError

if TYPE_CHECKING:
    from seqplan.costs.profile import Profile

ExecutionKind = Literal["uniform", "static", "regroup", "lockstep"]
"""``uniform``: one scheme on all ranks, the same at every step. ``static``: a strategy for each
step, whose groups stay within it. ``regroup``: groups may also change within a step. ``lockstep``:
all ranks run their k-th micro-batch together, in groups formed for each micro-step."""

EXECUTIONS: tuple[ExecutionKind, ...] = get_args(ExecutionKind)

MOST_MULTIPLE = 4096
"""What a number of micro-steps may be a multiple of at most: stages and accumulated gradients need
tens, and each micro-step of a plan takes memory."""


def choose_execution(
    execution: str | None,
    profile: Profile,
    micro_step_multiple: int = 1,
    *,
    trainer: str | None = None,
    supported: tuple[ExecutionKind, ...] = EXECUTIONS,
) -> ExecutionKind:
    """Return the kind of execution, checked with the profile and the trainer that runs it.

    None: the first of ``supported``, those of the ``trainer``; lockstep under ZeRO-3. Without a
    trainer the default is ``regroup``. ``OptionError`` names the option.
    """
    if execution is None:
        chosen = _default_execution(profile, trainer, supported)
    else:
        chosen = _find_execution(execution)
        if chosen not in supported:
            raise OptionError(
                "{0} {kind}: {trainer} runs {supported}. Leave {0} out",
                "execution",
                kind=chosen,
                trainer=trainer,
                supported=" or ".join(supported),
            )
    if profile.lockstep and chosen in ("static", "regroup"):
        raise OptionError(
            "{0} {kind}: profile {profile} is of ZeRO-3, which runs in lockstep. Leave {0} out",
            "execution",
            kind=chosen,
            profile=profile.name,
        )
    if not 1 <= micro_step_multiple <= MOST_MULTIPLE:
        bound = "1 or more" if micro_step_multiple < 1 else f"{MOST_MULTIPLE} or fewer"
        raise OptionError(
            "{0} must be {bound}: {multiple}",
            "micro_step_multiple",
            bound=bound,
            multiple=micro_step_multiple,
        )
    if micro_step_multiple > 1 and not (chosen == "lockstep" or profile.lockstep):
        raise OptionError(
            "{0} {multiple}: {1} is {kind}, which has no micro-steps. Set {1} to lockstep",
            "micro_step_multiple",
            "execution",
            multiple=micro_step_multiple,
            kind=chosen,
        )
    return chosen


def narrow_execution(execution: str | None, proposed: ExecutionKind) -> ExecutionKind:
    """Return the kind of execution to plan with, of problems made for ``proposed``.

    Steps proposed for ``regroup`` may also be planned as ``static``; ``OptionError`` for others.
    """
    chosen = proposed if execution is None else _find_execution(execution)
    if chosen != proposed and (proposed, chosen) != ("regroup", "static"):
        raise OptionError(
            "{0} {kind}: the proposal was made for {proposed}. Leave {0} out, or propose again",
            "execution",
            kind=chosen,
            proposed=proposed,
        )
    return chosen


def _find_execution(name: str) -> ExecutionKind:
    for kind in EXECUTIONS:
        if kind == name:
            return kind
    raise OptionError(
        "{0} must be one of {kinds}: {name!r}", "execution", kinds=", ".join(EXECUTIONS), name=name
    )


def _default_execution(
    profile: Profile, trainer: str | None, supported: tuple[ExecutionKind, ...]
) -> ExecutionKind:
    if profile.lockstep:
        return "lockstep" if "lockstep" in supported else "uniform"
    return "regroup" if trainer is None else supported[0]
