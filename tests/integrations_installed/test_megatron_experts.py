"""Megatron's degree of expert parallelism chooses the entries of the profile."""

import json
import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest

from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.integrations.degree_costs import ring_costs

pytest.importorskip("megatron.core")

PROGRAM = """
import json, sys
import torch
from megatron.core import parallel_state
from seqplan.integrations.megatron import find_expert_parallel, read_costs

rank, meeting = int(sys.argv[1]), sys.argv[2]
assert find_expert_parallel() is None
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2
)
parallel_state.initialize_model_parallel(expert_model_parallel_size=2)
print(json.dumps([find_expert_parallel(), read_costs()[1].b]))
"""


def test_costs_are_those_of_the_expert_groups(tmp_path: Path) -> None:
    document = deepcopy(dict(load_shipped("llama3-8b-h100-80gb").restrict(layout=(1, 1)).document))
    document["model"].update(expert_layers=32, experts=64, experts_per_token=2, expert_ffn=1792)
    split = deepcopy(document["schemes"])
    for entry in split:
        entry["expert_parallel"] = 2
        for of_mode in entry["modes"].values():
            of_mode["b"] *= 2
    document["schemes"] += split
    document["memory"]["resident_expert_bytes"] = document["memory"]["resident_layer_bytes"] / 2
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(document))
    environment = {**os.environ, "SEQPLAN_PROFILE": str(profile), "SEQPLAN_SCHEME": "tp1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(rank), str(tmp_path / "meeting")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    expected = ring_costs(str(profile), "tp1", 2)[1].b
    assert expected == pytest.approx(2 * ring_costs(str(profile), "tp1", 1)[1].b)
    for output in outputs:
        assert json.loads(output.splitlines()[-1]) == [2, expected]
