"""verl's packing through its external-modules hook: jagged batches, alone and on ranks."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from free_port import free_port

from seqplan import Cost
from seqplan.planner.balance.fixed_ranks import balance_fixed

pytestmark = pytest.mark.skipif(find_spec("verl") is None, reason="verl is not installed")

RANK = r"""
import json, logging, os, sys, warnings
warnings.filterwarnings("ignore")
import numpy as np, torch, torch.distributed as dist
import verl
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, log_seqlen_unbalance
from verl.workers.engine import utils
from seqplan.integrations import verl as planned

logging.basicConfig(stream=sys.stderr)
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
group = None
if ranks > 1:
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    group = dist.group.WORLD
drawn = np.random.default_rng(rank).lognormal(6.8, 1.2, 60 + 10 * rank).astype(int) + 1
lengths = np.minimum(drawn, 8192).tolist()

loads = json.loads(os.environ.get("SEQPLAN_LOADS", "{}"))
# two of three samples have an image of up to 1,024 patches
sides = np.random.default_rng(rank + 9).integers(8, 33, len(lengths)).tolist()
sides = [s if i % 3 else 0 for i, s in enumerate(sides)]
images = [{"image_grid_thw": torch.tensor([[1, s, s]])} if s else {} for s in sides]
patches = [s * s for s in sides]

def batch(lengths, **more):
    rows = [torch.full((n,), i) for i, n in enumerate(lengths)]
    ids = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    settings = {"use_dynamic_bsz": True, "max_token_len_per_gpu": 8192, "sp_size": 1, **more}
    fields = {"input_ids": ids}
    if loads and not more:
        fields["multi_modal_inputs"] = images[: len(lengths)]
    return tu.get_tensordict(fields, settings)

def prepared(lengths, **more):
    micro_batches, places = utils.prepare_micro_batches(batch(lengths), dp_group=group, **more)
    return [[int(row[0]) for row in micro["input_ids"].unbind()] for micro in micro_batches], places

def slowest(places):
    times = [sum(2e-6 * lengths[i] ** 2 + 0.1 * lengths[i] for i in micro) + 60 for micro in places]
    return sorted(times, reverse=True)

ours, places = prepared(lengths)
out = {"lengths": lengths, "ours": ours, "places": places, "times": slowest(places)}
out["figures"] = dict(planned.figures)
out["multiple"] = len(prepared(lengths, num_batches_divided_by=4)[0])
grouped = batch([min(n, 4096) for n in lengths], force_group_size=2)
out["grouped"] = utils.prepare_micro_batches(grouped)[1]
out["workload"] = calculate_workload(torch.tensor([1000, 2000])).tolist()
out["metrics"] = log_seqlen_unbalance([100, 300, 200, 200], [[0, 1], [2, 3]], "seq")
# Alone, as between ranks it requires an accelerator; as many as ours, so that they can be paired.
theirs = planned.find_original(utils.rearrange_micro_batches)
_, packed = theirs(batch(lengths), 8192, min_num_micro_batch=len(places))
out["theirs"] = slowest(packed)
out["patches"] = patches
if loads and rank == 0:
    from types import SimpleNamespace
    from verl import DataProto
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    trainer = object.__new__(RayPPOTrainer)
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0, 1]})
    mask = torch.zeros(60, 8192, dtype=torch.long)
    for row, n in zip(mask, lengths): row[:n] = 1
    inputs = np.array(images[:60], dtype=object)
    fields = {"attention_mask": mask}
    for step in range(2):
        metrics = {}
        data = DataProto.from_dict(dict(fields), {"multi_modal_inputs": inputs})
        trainer._balance_batch(data, metrics)
        out[f"dispatch {step}"] = metrics["global_seqlen/predicted_ms"]
print(json.dumps(out))
if group:
    dist.destroy_process_group()
"""


def on_ranks(ranks: int, port: int, **more: str) -> list[dict[str, Any]]:
    """Run the script as so many ranks; what each printed, and its log."""
    environment = {
        **os.environ,
        "VERL_USE_EXTERNAL_MODULES": "seqplan.integrations.verl",
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "SEQPLAN_COST": "2e-6,0.1,60",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        **more,
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = []
    for process in started:
        out, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors[-3000:]
        outputs.append({**json.loads(out.splitlines()[-1]), "log": errors})
    return outputs


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return on_ranks(1, 0)[0]


def check(rank: dict[str, Any]) -> None:
    assert rank["ours"] == rank["places"]
    assert sorted(i for micro in rank["places"] for i in micro) == list(range(len(rank["lengths"])))
    for micro in rank["places"]:
        assert 0 < sum(rank["lengths"][i] for i in micro) <= 8192


def test_a_jagged_batch_is_packed(alone: dict[str, Any]) -> None:
    check(alone)
    assert sum(alone["times"]) <= sum(alone["theirs"]) * (1 + 1e-9)
    assert alone["figures"]["predicted_ms"] == pytest.approx(sum(alone["times"]))
    assert alone["multiple"] % 4 == 0


def test_unplanned_batches_are_packed_by_verl(alone: dict[str, Any]) -> None:
    assert "groups of 2 samples stay together: this batch is packed as verl does it" in alone["log"]
    assert all(set(micro) == {j for i in micro for j in (i, i ^ 1)} for micro in alone["grouped"])


def test_the_workload_is_the_cost_and_metrics_say_so(alone: dict[str, Any]) -> None:
    assert alone["workload"] == [102_000_000, 208_000_000]
    metrics = alone["metrics"]
    assert metrics["seq/predicted_ms"] == pytest.approx(40 + 2e-6 * (100**2 + 300**2))
    assert metrics["seq/imbalance"] == pytest.approx(metrics["seq/gap"])
    assert metrics["seq/balanced_max"] == 400


def test_ranks_pack_together() -> None:
    """Equal counts, and Σ of the slowest no more than verl's on the same sequences."""
    ranks = on_ranks(2, free_port())
    for rank in ranks:
        check(rank)
    assert len({len(rank["places"]) for rank in ranks}) == 1
    assert ranks[0]["figures"] == ranks[1]["figures"]

    def lockstep(name: str) -> float:
        return sum(max(pair) for pair in zip(*(rank[name] for rank in ranks), strict=True))

    assert lockstep("times") == pytest.approx(ranks[0]["figures"]["predicted_ms"])
    assert len({len(rank["theirs"]) for rank in ranks}) == 1
    assert lockstep("times") <= lockstep("theirs") * (1 + 1e-9)


def test_images_count_in_dispatch_and_packing() -> None:
    """In each phase the slowest rank counts; packing by lengths alone takes longer."""
    vision = {"column": "image_grid_thw", "cost": [1e-5, 0.3, 5], "capacity": 8192}
    ranks = on_ranks(2, free_port(), SEQPLAN_LOADS=json.dumps({"vision": vision}))

    def phases_ms(rank: dict[str, Any], micro: list[int]) -> tuple[float, float]:
        images = [rank["patches"][i] for i in micro]
        work = sum(1e-5 * p * p + 0.3 * p for p in images)
        text = sum(2e-6 * n * n + 0.1 * n for n in (rank["lengths"][i] for i in micro))
        return work + 5 * (work > 0), text + 60

    def lockstep(parts: list[list[list[int]]]) -> float:
        times = [[phases_ms(rank, m) for m in of] for rank, of in zip(ranks, parts, strict=True)]
        return float(np.array(times).max(axis=0).sum())

    for rank in ranks:
        check(rank)
        assert all(sum(rank["patches"][i] for i in m) <= 8192 for m in rank["places"])
    ours = lockstep([rank["places"] for rank in ranks])
    assert ours == pytest.approx(ranks[0]["figures"]["predicted_ms"])
    assert ranks[0]["figures"]["gap"] < 0.05
    blind = balance_fixed([rank["lengths"] for rank in ranks], 8192, Cost(2e-6, 0.1, 60))
    offset = len(ranks[0]["lengths"])
    parts = [[[i - offset * r for i in m] for m in of] for r, of in enumerate(blind.micro_batches)]
    assert ours < lockstep(parts)
    work = [sum(phases_ms(ranks[0], [i])) - 60 for i in range(60)]
    text = [phases_ms(ranks[0], [i])[1] - 60 for i in range(60)]
    assert ranks[0]["dispatch 0"] >= sum(text) / 2
    assert ranks[0]["dispatch 1"] >= sum(work) / 2 - 60 * 5 / 2
    assert ranks[0]["dispatch 1"] > ranks[0]["dispatch 0"]


def test_engines_switch_recomputation_modes() -> None:
    program = """
import warnings; warnings.filterwarnings("ignore")
import verl.workers.engine.fsdp.transformer_impl as fsdp
from seqplan.integrations import verl as planned
planned._install_recomputation()
print(hasattr(fsdp.FSDPEngineWithLMHead.forward_step, "host_function"))
"""
    for limits, wrapped in (({"SEQPLAN_RECOMPUTE": "none:9,full:20"}, "True"), ({}, "False")):
        environment = {**os.environ, "SEQPLAN_COST": "2e-6,0.1,60", **limits}
        ran = subprocess.run(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert ran.stdout.split()[-1:] == [wrapped]
