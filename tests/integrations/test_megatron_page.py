"""The page on Megatron: flags from a proposal, by the page's code."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from seqplan import Workload, make_proposal
from seqplan.costs.shipped.catalogue import load_shipped

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "megatron.md"
LENGTHS = np.load(ROOT / "examples" / "data" / "code.npy")[:3000]


def read_flags() -> str:
    """Read the page's program."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "proposal[" in block)
    return code


def test_flags_follow_from_a_proposal(tmp_path: Path) -> None:
    workload = Workload(16, 16_384, 50_000)
    proposal = make_proposal(
        load_shipped("llama-7b-a800-80gb"), workload, LENGTHS, trainer="megatron"
    )
    (tmp_path / "proposal.json").write_text(proposal.to_json())
    (tmp_path / "flags.py").write_text(read_flags())
    printed = subprocess.run(
        [sys.executable, "flags.py", "proposal.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    flags = dict(zip(printed[::1], [*printed[1:], ""], strict=True))
    schemes = {scheme for c in proposal.candidates for scheme, _ in c.strategy.counts}
    ((tp, pp),) = {(scheme.tp, scheme.pp) for scheme in schemes}
    assert flags["--tensor-model-parallel-size"] == str(tp)
    assert flags["--pipeline-model-parallel-size"] == str(pp)
    assert flags["--seq-length"] == "16384"
    models = workload.models(proposal.profile)
    per_rank = [models[scheme].max_sequence // scheme.ring for scheme in schemes]
    assert flags["--max-seqlen-per-dp-cp-rank"] == str(min(per_rank))
    assert "--use-distributed-optimizer" in printed
    assert ("--sequence-parallel" in printed) == (tp > 1)
    assert "--expert-model-parallel-size" not in printed


def test_flags_of_experts_follow_and_several_modes_are_rejected(tmp_path: Path) -> None:
    profile = load_shipped("qwen3-30b-a3b-h100-80gb").at_expert_parallel(8)
    for name, chosen in (("one", profile.keep_modes(["full"])), ("several", profile)):
        workload = Workload(16, 16_384, 50_000)
        proposal = make_proposal(chosen, workload, LENGTHS, trainer="megatron")
        (tmp_path / f"{name}.json").write_text(proposal.to_json())
    (tmp_path / "flags.py").write_text(read_flags())
    one, several = (
        subprocess.run(
            [sys.executable, "flags.py", f"{name}.json"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        for name in ("one", "several")
    )
    assert "--expert-model-parallel-size 8 --expert-tensor-parallel-size 1" in one.stdout
    assert several.returncode == 1
    assert "a profile of several recomputation modes. Derive one with" in several.stderr
