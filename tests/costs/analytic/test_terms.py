"""Terms against sums done by hand, and against each other when physics fixes the larger one."""

from dataclasses import replace

import numpy as np
import pytest
from deployments import LLAMA_7B as LLAMA
from deployments import deploy, read_terms

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.estimate import Load, estimate, model_flops, problem
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.gpus.kernels import attention_kernel_ms, matmul_ms
from seqplan.costs.analytic.gpus.links import (
    Group,
    all_to_all_ms,
    placement,
    ring_collective_ms,
    shift_ms,
)
from seqplan.costs.analytic.terms import stage_terms
from seqplan.plans.scheme import Scheme

A800 = DEVICES["a800-80gb"]
ONE_NODE = deploy(LLAMA, nodes=1)
QUIET = replace(A800, intra_latency_us=0.0, inter_latency_us=0.0, inter_rank_us=0.0)


def total(deployment: Deployment, scheme: str, lengths: list[int]) -> float:
    return sum(read_terms(deployment, scheme, lengths).values())


def test_transfers_within_and_between_nodes() -> None:
    """1 GB over 0.8 of 200 GB/s in a node, of 25 GB/s between nodes."""
    cluster = ClusterHardware(QUIET, 2, 8)
    assert all_to_all_ms(cluster, Group(8), 1e9) == pytest.approx(7 / 8 / 160 * 1e3)
    assert all_to_all_ms(cluster, Group(16), 1e9) == pytest.approx(8 / 16 / 20 * 1e3)
    assert shift_ms(cluster, Group(2, 8), 1e9) == pytest.approx(1 / 20 * 1e3)
    assert shift_ms(cluster, Group(8), 1e9) == pytest.approx(1 / 160 * 1e3)
    assert ring_collective_ms(cluster, Group(8), 1e9) == pytest.approx(7 / 8 / 160 * 1e3)
    # 16 ranks: eight network cards, 160 GB/s together, as much as NVLink.
    assert ring_collective_ms(cluster, Group(16), 1e9) == pytest.approx(15 / 16 / 160 * 1e3)
    assert ring_collective_ms(cluster, Group(2, 8), 1e9) == pytest.approx(1 / 2 / 20 * 1e3)
    assert all_to_all_ms(cluster, Group(1), 1e9) == 0


def test_a_pcie_bridge_is_shared() -> None:
    """u2: a switch alone, 25.6 GB/s. u4: 8 transfers cross a bridge, 3.5 at the full rate."""
    cluster = ClusterHardware(replace(DEVICES["l20-48gb"], intra_latency_us=0.0), 1, 8)
    assert all_to_all_ms(cluster, Group(2), 1e9) == pytest.approx(1 / 2 / 25.6 * 1e3)
    assert all_to_all_ms(cluster, Group(4), 1e9) == pytest.approx(8 / 4 / (25.6 * 3.5 / 8) * 1e3)
    # A ring's two transfers across the bridge (to the next switch, to the other socket).
    assert shift_ms(cluster, Group(8), 1e9) == pytest.approx(2 / 25.6 * 1e3)


def test_groups_are_laid_out_from_the_fastest_links() -> None:
    groups = placement(Scheme(tp=2, pp=3, ulysses=4, ring=5), dp=7)
    assert groups["tp"] == Group(2, 1)
    assert groups["ulysses"] == Group(4, 2)
    assert groups["ring"] == Group(5, 8)
    assert groups["dp"] == Group(7, 40)
    assert groups["pp"] == Group(3, 280)
    assert groups["replica"] == Group(140, 2)


def test_kernels_slow_down_with_size() -> None:
    """Efficiency, FLOPs over peak time, falls with tokens, with hidden/tp, and with piece size."""
    peak = 312e9

    def product(rows: int, columns: int) -> float:
        return float(2 * rows * 4096 * columns / peak / matmul_ms(A800, rows, 4096, columns))

    assert 0.7 < product(32768, 4096) < 0.85
    assert product(32768, 4096) > product(2048, 4096) > product(256, 4096)
    assert product(8192, 4096) > product(8192, 512) > product(8192, 128)

    def kernel(tokens: int, heads: int) -> float:
        ms = attention_kernel_ms(A800, [tokens], [tokens], heads, 128, causal=False)
        return float(4 * tokens**2 * heads * 128 / peak / ms)

    assert 0.68 < kernel(32768, 32) < 0.73
    assert kernel(32768, 32) > kernel(4096, 32) > kernel(512, 32)
    assert kernel(4096, 32) > kernel(4096, 2)


def test_packed_sequences_do_not_attend_to_each_other() -> None:
    together = stage_terms(ONE_NODE, Scheme(), [8192])
    packed = stage_terms(ONE_NODE, Scheme(), [4096, 4096])
    assert float(packed["attention"]) == pytest.approx(float(together["attention"]) / 2, rel=0.06)
    assert packed["matrix products"] == together["matrix products"]


def test_lengths_are_vectorised() -> None:
    lengths = np.array([[4096, 0], [8192, 4096], [512, 512]])
    at_once = stage_terms(ONE_NODE, Scheme(tp=2, ulysses=2, ring=2), lengths)
    for i, row in enumerate(lengths):
        alone = stage_terms(ONE_NODE, Scheme(tp=2, ulysses=2, ring=2), row[row > 0])
        assert {k: pytest.approx(float(v)) for k, v in alone.items()} == {
            k: float(np.broadcast_to(v, 3)[i]) for k, v in at_once.items()
        }


def test_tp_moves_four_gathers_and_four_scatters_a_layer() -> None:
    deployment = replace(ONE_NODE, cluster=ClusterHardware(QUIET, 1, 8))
    once = stage_terms(deployment, Scheme(tp=4), [16384])["tp communication"]
    assert once == pytest.approx(32 * 8 * (16384 * 4096 * 2) * 3 / 4 / 160e9 * 1e3)
    again = stage_terms(replace(deployment, recompute="full"), Scheme(tp=4), [16384])
    assert again["tp communication"] == pytest.approx(float(once) * 12 / 8)


def test_ring_transfers_hide_behind_long_kernels_only() -> None:
    slow = Deployment(cluster=ClusterHardware(A800, 4, 1), sizes=LLAMA)
    short = stage_terms(slow, Scheme(ring=4), [2048])
    long = stage_terms(slow, Scheme(ring=4), [262144])
    assert short["ring transfer"] > short["attention"]
    # The rest is the multiprocessors that the transfer takes away.
    assert long["ring transfer"] < 0.15 * long["attention"]


def test_checkpointing_trades_time_for_memory() -> None:
    times, sizes = [], []
    for mode in ("none", "mlp", "full"):
        iteration = estimate(
            replace(ONE_NODE, recompute=mode), Scheme(tp=2, ulysses=4), Load(seq_len=32768, batch=1)
        )
        times.append(iteration.iteration_ms)
        sizes.append(iteration.memory_bytes["activations"])
    assert times == sorted(times)
    assert sizes == sorted(sizes, reverse=True)
    assert times[2] > 1.2 * times[0]
    assert sizes[2] < 0.15 * sizes[0]


def test_zero_stages_shard_more_and_send_more() -> None:
    by_zero = {
        zero: estimate(replace(ONE_NODE, zero=zero), Scheme(), Load(seq_len=2048, batch=16))
        for zero in (1, 2, 3)
    }
    assert by_zero[1].peak_bytes > by_zero[2].peak_bytes > by_zero[3].peak_bytes
    assert by_zero[2].terms_ms["parameter sync"] > by_zero[1].terms_ms["parameter sync"]
    # Gathering hides behind 2,048 tokens of a layer within a node, not behind 64; it takes
    # multiprocessors from what hides it, and nothing hides its beginning and end.
    moved = 2 * 3 * 2 * LLAMA.layers_parameters * 7 / 8 / 160e9 * 1e3
    gathering = by_zero[3].terms_ms["parameter gathering"]
    assert gathering == pytest.approx(moved * (16 / 108 + 2 / 3 / 32), rel=0.01)
    assert gathering < 0.1 * by_zero[3].iteration_ms
    short = estimate(replace(ONE_NODE, zero=3), Scheme(), Load(seq_len=64, batch=8))
    assert short.terms_ms["parameter gathering"] > 0.3 * short.iteration_ms
    # Each rank holds 1/8 of 18 bytes per parameter under ZeRO 3.
    assert by_zero[3].memory_bytes["optimizer and sharded states"] == 18 * LLAMA.parameters / 8
    assert by_zero[3].memory_bytes["parameters and gradients"] == 0


def test_terms_and_bytes_add_up_and_the_bubble_is_1f1b() -> None:
    iteration = estimate(ONE_NODE, Scheme(tp=2, pp=4), Load(seq_len=4096, batch=6))
    assert iteration.micro_batches == 6
    assert sum(iteration.terms_ms.values()) == pytest.approx(iteration.iteration_ms)
    assert sum(iteration.memory_bytes.values()) == iteration.peak_bytes
    stage = total(ONE_NODE, "tp2.pp4", [4096])
    assert iteration.terms_ms["pipeline bubble"] == pytest.approx(3 * stage)
    flops = 6 * model_flops(LLAMA, 4096)
    assert iteration.tflops_per_gpu * 8e12 * iteration.iteration_ms / 1e3 == pytest.approx(flops)
    assert iteration.mfu == pytest.approx(iteration.tflops_per_gpu / 312)


def test_model_flops_by_hand() -> None:
    products = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    wanted = 6 * products * 1000 + 6 * 32 * 4096 * 1000**2
    assert model_flops(LLAMA, 1000) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("deployment", "scheme", "load", "reason"),
    [
        (ONE_NODE, "tp3", Load(seq_len=4096, batch=8), "3 GPUs do not divide the cluster's 8"),
        (ONE_NODE, "pp8", Load(seq_len=4, batch=8), None),
        (ONE_NODE, "r8", Load(seq_len=15, batch=1), "tokens a sequence are too few for 8 GPUs"),
        (ONE_NODE, "tp2", Load(seq_len=4096, batch=6), "batch 6 is no multiple of dp · micro"),
        (replace(ONE_NODE, zero=3), "pp2", Load(seq_len=4096, batch=4), "use it with pp = 1"),
        (
            replace(ONE_NODE, sizes=replace(LLAMA, heads=4, kv_heads=4)),
            "u8",
            Load(seq_len=4096, batch=1),
            "does not divide the 4 attention heads",
        ),
    ],
)
def test_schemes_that_cannot_run_have_a_reason(
    deployment: Deployment, scheme: str, load: Load, reason: str | None
) -> None:
    rejection = problem(deployment, Scheme.parse(scheme), load)
    if reason is None:
        assert rejection is None
        return
    assert rejection is not None
    assert reason in rejection
    with pytest.raises(ValueError, match=scheme):
        estimate(deployment, Scheme.parse(scheme), load)


def test_large_clusters_and_loads_are_estimated_at_once() -> None:
    large = replace(ONE_NODE, cluster=ClusterHardware(DEVICES["l20-48gb"], 1_000_000, 1024))
    iteration = estimate(
        large, Scheme(tp=8, ulysses=4), Load(seq_len=10**9, batch=32_000_000, micro_batch=1)
    )
    assert np.isfinite(iteration.iteration_ms)
    assert iteration.micro_batches == 1


TILES = 128 * np.arange(24, 500)[:, None] + [0, 1]
LENGTHS = np.unique(np.concatenate([np.arange(1, 3000), TILES], axis=None))


@pytest.mark.parametrize("device", ["a800-80gb", "h100-80gb", "b200-180gb"])
@pytest.mark.parametrize("scheme", ["tp1", "tp8", "u8", "r2", "tp2.u2.r2", "tp4.pp2"])
@pytest.mark.parametrize("model", ["llama-7b", "llama3-70b", "qwen3-30b-a3b"])
def test_longer_sequences_take_longer(device: str, scheme: str, model: str) -> None:
    """Also by one token beyond a tile of 128, which only fills multiprocessors."""
    parsed = Scheme.parse(scheme)
    for zero in (1, 3) if parsed.tp == parsed.pp == 1 else (1,):
        deployment = deploy(model, device, 8, zero=zero)
        terms = stage_terms(deployment, parsed, LENGTHS[:, None], dp=8)
        times = sum(terms.values(), start=np.zeros(len(LENGTHS)))
        assert (times[1:] / times[:-1] - 1).min() > -1e-12


@pytest.mark.parametrize("zero", [1, 3])
def test_micro_batch_without_tokens_takes_no_time(zero: int) -> None:
    for model in ("llama-7b", "qwen3-30b-a3b", "gpt-oss-20b"):
        deployment = deploy(model, "h100-80gb", 1, zero=zero)
        terms = stage_terms(deployment, Scheme(ulysses=2, ring=2), [[0, 0], [4096, 0]], 2)
        alone = stage_terms(deployment, Scheme(ulysses=2, ring=2), [4096], 2)
        for name, term in terms.items():
            assert list(term) == [0.0, pytest.approx(float(alone[name]))]


@pytest.mark.parametrize("nodes", [1, 8])
@pytest.mark.parametrize("scheme", ["u8", "r2", "u2.r2", "r8"])
def test_faster_products_make_no_step_slower(nodes: int, scheme: str) -> None:
    """Transfers of a ring and ZeRO-3's gathering hide behind the same kernels."""
    lengths, before = np.geomspace(200, 131072, 40)[:, None], None
    for faster in np.linspace(1, 3, 9):
        hardware = replace(DEVICES["h100-80gb"], peak_tflops=989 * faster)
        cluster = ClusterHardware(hardware, nodes, 8)
        deployment = Deployment(cluster=cluster, sizes=LLAMA, zero=3)
        parsed = Scheme.parse(scheme)
        terms = stage_terms(deployment, parsed, lengths, cluster.gpus // parsed.gpus)
        times = sum(terms.values(), start=np.zeros(len(lengths)))
        if before is not None:
            assert (times / before).max() <= 1 + 1e-12
        before = times
