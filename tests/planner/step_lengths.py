"""Steps of the code lengths that the repository carries."""

from pathlib import Path

import numpy as np

from seqplan import Plan, from_json, to_json
from seqplan.planner.placement.fleet import Models
from seqplan.planner.step.check_bounds import find_unproven
from seqplan.plans.lint import lint

CODE = np.load(Path(__file__).parents[2] / "examples" / "data" / "code.npy")
CASES = (("llama-7b-a800-80gb", 64, 600_000), ("llama3-8b-h100-80gb", 8, 200_000))
"""Profile, GPUs and tokens of a step."""


def draw(tokens: int, seed: int, longest: int = 32_768, most: int = 4_000) -> list[int]:
    """Draw lengths up to ``longest``, some ``tokens`` together."""
    drawn = np.random.default_rng(seed).choice(CODE[longest >= CODE], most)
    return drawn[: int(np.searchsorted(np.cumsum(drawn), tokens))].tolist()


def draw_clipped(tokens: int, seed: int, longest: int = 32_768) -> list[int]:
    """Draw lengths clipped to ``longest``, some ``tokens`` together."""
    drawn = np.minimum(np.random.default_rng(seed).choice(CODE, 80_000), longest)
    return drawn[: int(np.searchsorted(np.cumsum(drawn), tokens))].tolist()


def check_plan(plan: Plan, models: Models) -> None:
    """Check that a plan keeps every rule, is read as it is written, and has a proven bound."""
    assert lint(plan, models) == []
    assert from_json(to_json(plan)) == plan
    assert list(find_unproven(plan, models)) == []
