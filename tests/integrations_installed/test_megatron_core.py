"""Planned schedules in the megatron-core that is installed: releases have the hybrid wrapper, the
development branch has a registry (tried where PYTHONPATH leads to it)."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("megatron.core")

import numpy as np
import torch
from megatron.core.datasets import data_schedule
from megatron_contract import CAPACITY, COST, check, drawn, time_ms
from torch.testing._internal.distributed.fake_pg import FakeStore

from seqplan import Cost
from seqplan.integrations import megatron
from seqplan.integrations.degree_costs import by_degree
from seqplan.integrations.versions import UnsupportedVersion

REGISTRY: dict[Any, Any] = getattr(data_schedule, "scheduler_map", {})
RANKS = 64
SHAPES = ((1, 0), (5, 0), (63, 0), (256, 0), (512, 0), (512, 1))

hybrid = pytest.mark.skipif(
    not hasattr(data_schedule, "HybridCPDataLoaderWrapper"), reason="no hybrid wrapper"
)
NAMES = {str(getattr(key, "value", key)) for key in REGISTRY}
registry = pytest.mark.skipif(
    megatron.DYNAMIC not in NAMES, reason="no dynamic context parallelism in its registry"
)
static_registry = pytest.mark.skipif(
    megatron.STATIC not in NAMES, reason="no balanced replicas in its registry"
)


@pytest.fixture(scope="module", autouse=True)
def ranks() -> Iterator[None]:
    """Groups of 64 ranks that send nothing: schedulers only read their size."""
    torch.distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    megatron.install(COST)
    yield
    torch.distributed.destroy_process_group()


def wrapper() -> Any:
    world = torch.distributed.group.WORLD
    return data_schedule.HybridCPDataLoaderWrapper(
        None,
        SimpleNamespace(max_seqlen_per_dp_cp_rank=CAPACITY),
        SimpleNamespace(dp_cp=world, dp=world, tp=world),
    )


@hybrid
@pytest.mark.parametrize(("sequences", "seed"), SHAPES)
def test_the_hybrid_wrapper_runs_planned_groups(sequences: int, seed: int) -> None:
    scheduler = wrapper().cp_balancing_scheduler
    lengths = drawn(sequences, seed)
    groups, ids = scheduler.get_groups_and_subsamples(list(enumerate(lengths)), None)
    check(ids, lengths, RANKS, one_each=True)
    assert groups == [[[lengths[i] for i in members] for members in group] for group in ids]
    costs = by_degree(COST, RANKS)
    planned = time_ms(ids, lengths, costs, one_each=True)
    assert planned == pytest.approx(megatron.figures["predicted_ms"])
    original = scheduler.host_class(CAPACITY, torch.distributed.group.WORLD)
    _, theirs = original.get_groups_and_subsamples(list(enumerate(lengths)), None)
    assert planned <= time_ms(theirs, lengths, costs, one_each=True) * (1 + 1e-9)


@hybrid
def test_unplannable_steps_run_as_megatron_schedules_them(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = wrapper().cp_balancing_scheduler
    caplog.set_level(logging.WARNING)
    groups, ids = scheduler.get_groups_and_subsamples([], None)
    assert (groups, ids) == ([], [])
    assert "there are no samples to plan: this step runs as Megatron schedules it" in caplog.text


def registered(name: str) -> Any:
    """The class of a name, which keys the registry itself or as an enumeration's value."""
    return next(c for key, c in REGISTRY.items() if getattr(key, "value", key) == name)


def dynamic(ranks: int, least: int = 1, multiple: int | None = None) -> Any:
    scheduler = registered(megatron.DYNAMIC)
    return scheduler(CAPACITY, 2, ranks // 2, multiple, min_cp_size=least)


@registry
@pytest.mark.parametrize(("sequences", "seed"), SHAPES)
def test_the_registry_runs_planned_groups(sequences: int, seed: int) -> None:
    lengths = drawn(sequences, seed)
    scheduler = dynamic(RANKS)
    ids = scheduler.get_groups_and_subsamples(list(enumerate(lengths)))
    check(ids, lengths, RANKS)
    costs = by_degree(COST, RANKS)
    planned = time_ms(ids, lengths, costs)
    assert planned == pytest.approx(megatron.figures["predicted_ms"])
    original = scheduler.host_class(CAPACITY, 2, RANKS // 2, None)
    theirs = original.get_groups_and_subsamples(list(enumerate(lengths)))
    assert planned <= time_ms(theirs, lengths, costs) * (1 + 1e-9)
    assert data_schedule.DefaultDynamicCPScheduler is type(scheduler)


@registry
@pytest.mark.parametrize("ring_ms", [0.4, 5.0, 25.0])
def test_small_and_nearly_full_batches_are_no_slower(ring_ms: float) -> None:
    """Wide groups for leftovers do not pay if a further rank costs much."""
    costs = {
        d: Cost(k.a, k.b, COST.c + ring_ms * (d - 1)) for d, k in by_degree(COST, RANKS).items()
    }
    original = getattr(registered(megatron.DYNAMIC), "host_class", registered(megatron.DYNAMIC))
    planned_class = megatron._dynamic(original, costs)
    rng = np.random.default_rng(1)
    for case in range(24):
        ranks = int(rng.choice([4, 8, 16]))
        lengths = drawn(int(rng.integers(1, 2 * ranks + 1)), seed=case, longest=CAPACITY * 4)
        if case % 2:
            lengths = [*drawn(400, seed=case, longest=CAPACITY * 4)]
            full = int(np.searchsorted(np.cumsum(lengths), ranks * CAPACITY * 0.98))
            lengths = [*lengths[: max(1, full)], 128]
        samples = list(enumerate(lengths))
        planned = planned_class(CAPACITY, 2, ranks // 2, None).get_groups_and_subsamples(samples)
        check(planned, lengths, ranks)
        theirs = original(CAPACITY, 2, ranks // 2, None).get_groups_and_subsamples(samples)
        of_ranks = by_degree(costs, ranks)
        assert time_ms(planned, lengths, of_ranks) <= time_ms(theirs, lengths, of_ranks) + 1e-6


@registry
def test_degrees_and_numbers_of_micro_batches_are_the_hosts() -> None:
    lengths = drawn(200)
    ids = dynamic(48, least=2, multiple=4).get_groups_and_subsamples(list(enumerate(lengths)))
    check(ids, lengths, 48, least=2)
    assert len(ids) % 4 == 0


@registry
def test_packed_micro_batches_hold_the_samples() -> None:
    """Megatron's packing accepts the groups, on every rank of one of them."""
    from megatron.core.datasets.data_schedule_utils import build_packed_microbatches

    lengths = drawn(40, longest=4_000)
    ids = dynamic(8).get_groups_and_subsamples(list(enumerate(lengths)))
    check(ids, lengths, 8)
    samples = {
        i: {
            key: torch.full((length,), i)
            for key in ("tokens", "labels", "loss_mask", "position_ids")
        }
        | {key: torch.tensor(length) for key in ("original_seq_len", "padded_seq_len")}
        for i, length in enumerate(lengths)
    }
    for rank in (0, 7):
        packed = build_packed_microbatches(samples, ids, rank, torch.device("cpu"), True)
        assert len(packed) == len(ids)
        for micro, of_ranks in zip(packed, ids, strict=True):
            members = of_ranks[rank]
            assert micro["tokens"].tolist() == [i for i in members for _ in range(lengths[i])]
            assert int(micro["local_cp_size"]) == sum(other == members for other in of_ranks)


@static_registry
def test_replicas_of_one_degree_are_balanced() -> None:
    static = registered(megatron.STATIC)
    lengths = drawn(200, longest=2 * CAPACITY)
    ids = static(CAPACITY, 2, 8, 2).get_groups_and_subsamples(list(enumerate(lengths)))
    check(ids, lengths, 16, least=2)
    assert len(ids) % 2 == 0
    theirs = static.host_class(CAPACITY, 2, 8, 2).get_groups_and_subsamples(
        list(enumerate(lengths))
    )
    costs = by_degree(COST, 2)
    assert time_ms(ids, lengths, costs) <= time_ms(theirs, lengths, costs)


OF_TWELVE = """
import json
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.datasets import data_schedule
from megatron_contract import CAPACITY, COST, check, drawn, time_ms
from types import SimpleNamespace
from torch.testing._internal.distributed.fake_pg import FakeStore
from seqplan.integrations import megatron
from seqplan.integrations.degree_costs import by_degree

dist.init_process_group("fake", rank=7, world_size=12, store=FakeStore())
megatron.install(COST)
hybrid = {"hybrid_context_parallel": True, "create_gloo_process_groups": False}
parallel_state.initialize_model_parallel(**hybrid)
find = parallel_state.get_hybrid_data_context_parallel_groups
sizes = (2, 3, 4, 6, 12)
members = {n: dist.get_process_group_ranks(find(group_size=n)) for n in sizes}
world = dist.group.WORLD
limits = SimpleNamespace(max_seqlen_per_dp_cp_rank=CAPACITY)
groups = SimpleNamespace(dp_cp=world, dp=world, tp=world)
scheduler = data_schedule.HybridCPDataLoaderWrapper(None, limits, groups).cp_balancing_scheduler
used = set()
for seed in range(6):
    lengths = drawn(90, seed, 24_000 + 8_000 * seed)
    samples, known = list(enumerate(lengths)), by_degree(COST, 12)
    _, ids = scheduler.get_groups_and_subsamples(samples, None)
    check(ids, lengths, 12, one_each=True, formed=sizes)
    planned = time_ms(ids, lengths, by_degree(COST, 12, formed=(1, *sizes)), one_each=True)
    powers = megatron._plan_groups(samples, 12, CAPACITY, known, one_each=True)
    assert planned <= time_ms(powers, lengths, known, one_each=True) * (1 + 1e-9)
    used |= {sum(i in of for of in step) for step in ids for of_rank in step for i in of_rank}
print(json.dumps([members, sorted(used)]))
"""


@hybrid
def test_groups_of_any_size_that_divides_the_ranks() -> None:
    """Rank 7 of 12 is in groups of 3 and 6, which schedules use."""
    completed = subprocess.run(
        [sys.executable, "-c", OF_TWELVE],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    members, used = json.loads(completed.stdout.splitlines()[-1])
    assert members["3"] == [6, 7, 8]
    assert members["6"] == [6, 7, 8, 9, 10, 11]
    assert members["4"] == [4, 5, 6, 7]
    assert {3, 6} & set(used)


def schedule_in_another_process() -> str:
    """Digest of a schedule, by an interpreter with another order of hashes."""
    code = (
        "import hashlib\n"
        "from megatron_contract import COST, drawn\n"
        "from seqplan.integrations.megatron import _plan_groups\n"
        "from seqplan.integrations.degree_costs import by_degree\n"
        "ids = _plan_groups(list(enumerate(drawn(300))), 64, 8192, by_degree(COST, 64))\n"
        "print(hashlib.sha256(str(ids).encode()).hexdigest())"
    )
    here = str(Path(__file__).parent)
    completed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return completed.stdout


def test_every_rank_computes_the_same() -> None:
    first, second = schedule_in_another_process(), schedule_in_another_process()
    assert first == second
    assert len(first) == 65


def test_a_version_without_a_place_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_schedule, "scheduler_map", {}, raising=False)
    monkeypatch.delattr(data_schedule, "HybridCPDataLoaderWrapper", raising=False)
    with pytest.raises(UnsupportedVersion, match=r"has no scheduler to replace; releases 0\.16\.1"):
        megatron.install(COST)


def test_the_code_of_the_page_installs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "megatron.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (block for block in blocks if "megatron.install(" in block)
    exec(code, {})
    printed = capsys.readouterr().out
    assert re.fullmatch(r"seqplan: plans [a-z_, ]+ of megatron-core \S+\n", printed)
    hybrid_class = getattr(data_schedule, "BalancedCPScheduler", None)
    planned = [*REGISTRY.values(), *([hybrid_class] if hybrid_class else [])]
    assert any(hasattr(scheduler, "host_class") for scheduler in planned)
    # Installed twice, a step still falls back to Megatron's class.
    originals = [s.host_class for s in planned if hasattr(s, "host_class")]
    assert not any(hasattr(host, "host_class") for host in originals)
