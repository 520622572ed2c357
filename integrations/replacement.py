"""Functions and classes of a trainer, replaced by planned ones, and the figures of their plans."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seqplan.planner.balance.balanced import Balanced
    from seqplan.planner.lockstep.filling.rank_groups import GroupedMicroSteps


def describe_plan(plan: Balanced | GroupedMicroSteps) -> dict[str, float]:
    """Return a plan's figures, for a trainer's metrics."""
    return {name: getattr(plan, name) for name in ("predicted_ms", "gap", "imbalance")}


def log_plan(
    logger: logging.Logger, micro_batches: int, plan: Balanced | GroupedMicroSteps
) -> None:
    """Log the micro-batches that each rank runs, and the plan's figures."""
    logger.info(
        "%d micro-batches a rank: %.0f ms predicted, gap %.2f %%, imbalance %.2f %%",
        micro_batches,
        plan.predicted_ms,
        100 * plan.gap,
        100 * plan.imbalance,
    )


def find_original(replacement: Any) -> Any:
    """Return the trainer's function in whose place another is, or the function itself."""
    return getattr(replacement, "host_function", replacement)


def replace(owner: Any, name: str, planned: Any) -> None:
    """Put a function in the place of a module's or class's, which ``find_original`` returns."""
    planned.host_function = find_original(getattr(owner, name))
    setattr(owner, name, planned)


def replace_everywhere(package: str, module: Any, name: str, planned: Any) -> None:
    """Replace a module's function, there and in the package's modules that have imported it."""
    original = find_original(getattr(module, name))
    replace(module, name, planned)
    for path, holder in list(sys.modules.items()):
        held = getattr(holder, name, None) if path.startswith(f"{package}.") else None
        if find_original(held) is original:
            setattr(holder, name, planned)


def fall_back(
    planned: Callable[..., Any],
    original: Callable[..., Any],
    warn: Callable[..., None],
    text: str,
) -> Callable[..., Any]:
    """Return ``planned``, which calls ``original`` instead when it raises ``ValueError``.

    ``warn``: a logger's method, which is then called with the error and ``text``.
    """

    @wraps(original)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return planned(*arguments, **named)
        except ValueError as error:
            warn("%s: %s", error, text)
            return original(*arguments, **named)

    return call
