"""Even packing: the same times and strategies, and no fuller micro-batch than before."""

from pathlib import Path

from command_line import call, succeeded
from planned_files import PlannedFiles

from seqplan import Plan, read_plans


def fullest(plan: Plan) -> int:
    """Tokens of the fullest micro-batch, relative to a GPU of its stage."""
    return max(
        micro.padded_tokens // pipeline.scheme.stage_gpus
        for pipeline in plan.pipelines
        for micro in pipeline.micro_batches
    )


def test_even_packing_keeps_the_times_and_needs_no_more_memory(
    dense: PlannedFiles, tmp_path: Path
) -> None:
    plans = {}
    for packing in ("tight", "even"):
        output = tmp_path / f"{packing}.jsonl"
        options = ("--tokens", 60_000, "--packing", packing, "-o", output)
        succeeded(call(*dense.plan_arguments, *options))
        succeeded(call("check", "plans", output, "--proposal", dense.proposal))
        plans[packing] = list(read_plans(output))
    changed = 0
    for tight, even in zip(plans["tight"], plans["even"], strict=True):
        assert abs(even.predicted_ms - tight.predicted_ms) < 0.01
        assert [p.scheme for p in even.pipelines] == [p.scheme for p in tight.pipelines]
        assert fullest(even) <= fullest(tight)
        changed += even.pipelines != tight.pipelines
    assert changed
