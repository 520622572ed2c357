"""The seven tips of USP (arXiv 2405.07719) follow from the terms; none is written into them."""

from dataclasses import replace

import pytest
from deployments import LLAMA_7B as LLAMA
from deployments import deploy, read_terms

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.estimate import Estimate, Load, estimate, problem
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.plans.scheme import Scheme

NODE = deploy(LLAMA, nodes=1)


def run(deployment: Deployment, scheme: str, seq_len: int = 32768, batch: int = 8) -> Estimate:
    return estimate(deployment, Scheme.parse(scheme), Load(seq_len=seq_len, batch=batch))


@pytest.mark.parametrize("kv_heads", [32, 8])
@pytest.mark.parametrize(("hardware", "nodes"), [("l20-48gb", 1), ("a800-80gb", 2)])
def test_1_both_together_are_better_than_either_where_links_differ(
    hardware: str, nodes: int, kv_heads: int
) -> None:
    deployment = deploy(replace(LLAMA, kv_heads=kv_heads), hardware, nodes)
    gpus = deployment.cluster.gpus

    def iteration_ms(ulysses: int) -> float:
        return run(deployment, f"u{ulysses}.r{gpus // ulysses}").iteration_ms

    both = min(iteration_ms(ulysses) for ulysses in (2, 4, 8) if ulysses < gpus)
    assert both < min(
        run(deployment, f"u{gpus}").iteration_ms, run(deployment, f"r{gpus}").iteration_ms
    )


def test_2_data_parallelism_before_sequence_parallelism() -> None:
    alone = run(NODE, "tp1").iteration_ms
    for scheme in ("u8", "r8", "u4.r2", "u2"):
        assert alone < run(NODE, scheme).iteration_ms


def test_3_zero_shards_over_sequence_parallel_ranks_too() -> None:
    """The ranks of u8 hold the same parameters: states are split over them as over dp = 8."""
    name = "optimizer and sharded states"
    assert run(NODE, "u8").memory_bytes[name] == run(NODE, "tp1").memory_bytes[name]
    # So sharding gradients too helps a single sequence-parallel replica.
    assert run(replace(NODE, zero=2), "u8").peak_bytes < run(NODE, "u8").peak_bytes


def test_4_sequence_parallelism_sends_less_than_tensor_parallelism() -> None:
    by_tp = run(NODE, "tp8").terms_ms["tp communication"]
    by_ulysses = run(NODE, "u8").terms_ms["ulysses"]
    grouped = replace(NODE, sizes=replace(LLAMA, kv_heads=8))
    assert by_ulysses < by_tp / 2
    assert run(grouped, "u8").terms_ms["ulysses"] < 0.75 * by_ulysses
    assert run(grouped, "r8").terms_ms["ring transfer"] < run(NODE, "r8").terms_ms["ring transfer"]


def test_5_sequence_instead_of_tensor_parallelism_makes_no_room() -> None:
    by_tp = run(NODE, "tp8").peak_bytes
    assert run(NODE, "u8").peak_bytes > by_tp
    # With ZeRO 3 it needs about as much.
    assert run(replace(NODE, zero=3), "u8").peak_bytes < 1.1 * by_tp


def test_6_ring_goes_on_where_heads_end() -> None:
    large = deploy(LLAMA, nodes=8)
    load = Load(seq_len=262144, batch=1)
    assert "32 attention heads" in str(problem(large, Scheme(ulysses=64), load))
    assert "32 attention heads" in str(problem(large, Scheme(tp=8, ulysses=8), load))
    assert problem(large, Scheme(ulysses=8, ring=8), load) is None
    assert problem(large, Scheme(ring=64), load) is None


def test_7_tensor_parallelism_suffers_most_from_slow_links_then_ulysses_then_ring() -> None:
    """Two GPUs with only a network card between them: the axis that loses most belongs inside."""
    apart = replace(NODE, cluster=ClusterHardware(DEVICES["a800-80gb"], 2, 1))
    together = replace(NODE, cluster=ClusterHardware(DEVICES["a800-80gb"], 1, 2))

    def loss(scheme: str) -> float:
        slow, fast = (read_terms(links, scheme, [65536]) for links in (apart, together))
        names = ("tp communication", "ulysses", "ring transfer")
        return sum(slow[name] - fast[name] for name in names)

    assert loss("tp2") > 1.5 * loss("u2")
    assert loss("u2") > 1.5 * loss("r2")
