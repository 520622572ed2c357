"""What ``import seqplan`` gives, and how little it loads."""

from importlib import metadata

import numpy as np
import pytest
from fresh_python import run_python

import seqplan


def test_every_name_is_there() -> None:
    assert list(seqplan.__all__) == sorted(seqplan.__all__)
    for name in set(seqplan.__all__) - {"__version__"}:
        assert getattr(seqplan, name).__name__.removeprefix("seqplan.") == name
    with pytest.raises(AttributeError, match="has no attribute 'Plann'"):
        _ = seqplan.Plann
    assert seqplan.__version__ == metadata.version("seqplan")


def test_importing_it_loads_nothing_heavy() -> None:
    code = "import seqplan, sys; dir(seqplan); print(*sys.modules)"
    loaded = set(run_python("-c", code).split())
    assert not {"numpy", "scipy", "torch", "seqplan.planner"} & loaded


def test_a_step_is_planned_from_these_names_alone() -> None:
    profile = seqplan.find_profile("llama-7b-a800-80gb")
    workload = seqplan.Workload(gpus=2, max_len=4096, tokens=8000)
    batch = seqplan.Batch.from_lengths([4096, 3000, 900, 700, 300, 120])
    proposal = seqplan.make_proposal(profile, workload, np.array(batch.lengths), seed=0)
    plan = seqplan.StepPlanner(proposal).plan(batch)
    assert isinstance(plan, seqplan.Plan)
    assert seqplan.rank_view(plan, 0).rank == 0
