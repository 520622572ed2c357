"""Check the options of lockstep planning."""

from __future__ import annotations

from seqplan.costs.profile import Profile

AS_FLAGS = ("--lockstep", "--micro-step-multiple", "--static-groups")
AS_NAMES = ("lockstep", "micro_step_multiple", "static_groups")
"""How the three are written on a command line, and in Python and requests."""


def check_rounds(
    profile: Profile,
    lockstep: bool,
    multiple: int,
    *,
    static_groups: bool = False,
    spelled: tuple[str, str, str] = AS_FLAGS,
) -> None:
    """Raise ``ValueError`` for options that do not go together with rounds, or without them.

    ``spelled``: how the caller writes the three.
    """
    if multiple < 1:
        raise ValueError(f"{spelled[1]} must be 1 or more, not {multiple}")
    if multiple > 1 and not (lockstep or profile.lockstep):
        raise ValueError(f"{spelled[1]} is for rounds; give {spelled[0]} with it")
    if lockstep and static_groups:
        raise ValueError(
            f"{spelled[0]} forms groups anew in each round, {spelled[2]} keeps them; leave one out"
        )
    if profile.lockstep and static_groups:
        raise ValueError(
            f"profile {profile.name} runs in rounds (ZeRO-3), which form groups anew; leave "
            f"{spelled[2]} out"
        )


def check_planning_in_lockstep(
    static_groups: bool,
    even: bool,
    *,
    spelled: tuple[str, str] = ("--static-groups", "--packing even"),
) -> None:
    """Raise ``ValueError`` for options of planning that rounds have no use for.

    ``even``: micro-batches of about equal tokens; ``spelled``: how the caller writes the two.
    """
    if static_groups:
        raise ValueError(
            f"the proposal's steps run in rounds, which form groups anew; leave {spelled[0]} out"
        )
    if even:
        raise ValueError(
            "the proposal's steps run in rounds, in which a group has one micro-batch; leave "
            f"{spelled[1]} out"
        )
