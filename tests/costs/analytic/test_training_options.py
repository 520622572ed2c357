"""How a model is trained: each option's effect against sums done by hand."""

from dataclasses import replace

import pytest
from deployments import LLAMA3_8B as LLAMA
from deployments import deploy, read_terms

from seqplan.costs.analytic.attention import attention_ms
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.estimate import Load, estimate, problem
from seqplan.costs.analytic.gpus.attention_rates import RATES, rate_of
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware, Hardware
from seqplan.costs.analytic.gpus.kernels import BACKWARD_FLOPS, attention_kernel_ms, matmul_ms
from seqplan.costs.analytic.gpus.links import Group, rank_latency_ms, ring_collective_ms
from seqplan.costs.analytic.memory import count_transient_bytes, layer_activation_bytes, verdict
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

H100 = DEVICES["h100-80gb"]
DEPLOYMENT = deploy(LLAMA, "h100-80gb")
QUIET = replace(H100, intra_latency_us=0.0, inter_latency_us=0.0, inter_rank_us=0.0)


def test_part_of_a_node_has_one_network_card_by_default() -> None:
    """1 GB over 0.8 of 50 GB/s a card; whole nodes have eight, 320 GB/s, NVLink is faster."""

    def ms(hardware: Hardware, group: Group) -> float:
        return float(ring_collective_ms(ClusterHardware(hardware, 2, 8), group, 1e9))

    assert ms(QUIET, Group(16)) == pytest.approx(15 / 16 / 320 * 1e3)
    assert ms(QUIET, Group(8, 2)) == pytest.approx(7 / 8 / 40 * 1e3)
    rails = replace(QUIET, inter_rails=8)
    assert ms(rails, Group(8, 2)) == pytest.approx(7 / 8 / 160 * 1e3)  # the four that it has
    assert ms(replace(QUIET, inter_rails=2), Group(16)) == pytest.approx(15 / 16 / 80 * 1e3)
    # Within a node nothing changes.
    assert ms(QUIET, Group(4)) == ms(rails, Group(4)) == pytest.approx(3 / 4 / 360 * 1e3)


@pytest.mark.parametrize(("generation", "kernel"), RATES)
def test_rates_are_shares_and_backward_is_slower(generation: str, kernel: str) -> None:
    rate = rate_of(generation, kernel)
    assert 0 < rate.backward < rate.forward < 1
    assert 0 < rate.narrow <= (rate.narrow_causal or 1) <= 1
    assert 0 < rate.causal <= 1


def test_every_device_has_the_kernel_that_this_runtime_calls() -> None:
    for device in DEVICES.values():
        assert device.attention_kernel == "fa2"
        assert device.attention_rate == rate_of(device.generation, "fa2")
        assert (device.warning is None) == (not device.unchecked)
    with pytest.raises(ValueError, match="'fa3' is not known on ada devices; there: fa2"):
        replace(DEVICES["l20-48gb"], attention_kernel="fa3")


@pytest.mark.parametrize("kernel", ["flex", "magi"])
def test_assumed_kernels_are_unchecked_by_name(kernel: str) -> None:
    hardware = replace(H100, attention_kernel=kernel)
    assert f"in attention ({kernel}) is assumed" in (hardware.warning or "")


def test_kernels_keep_gradients_of_keys_for_each_query_head_or_not() -> None:
    """Grouped keys and values of Llama 3 8B, 4,096 elements of queries and 1,024 of keys."""
    deployment = replace(
        DEPLOYMENT, recompute="full", stack="eager", loss="chunked", tiled_mlp=True
    )

    def transient(kernel: str) -> float:
        cluster = replace(deployment.cluster, hardware=replace(H100, attention_kernel=kernel))
        return count_transient_bytes(replace(deployment, cluster=cluster), 1)

    assert transient("sdpa") - transient("fa2") == 2 * 2 * (4096 - 1024)
    assert transient("fa2") - transient("fa3") == 2 * 2 * 4096 - 2 * 4 * 1024


def test_flex_takes_as_long_backward_as_its_two_passes() -> None:
    """Backward computes forward again: 2.5 times its products, and once more."""
    for generation in ("ampere", "hopper"):
        fa2, flex = rate_of(generation, "fa2"), rate_of(generation, "flex")
        again = 1 / (0.9 * fa2.forward) + BACKWARD_FLOPS / (0.85 * fa2.backward)
        assert flex.forward == pytest.approx(0.9 * fa2.forward, abs=0.006)
        assert flex.backward == pytest.approx(BACKWARD_FLOPS / again, abs=0.006)


def test_later_kernels_are_faster_on_hopper_and_narrow_heads_slower() -> None:
    def ms(kernel: str, heads: int = 32, width: int = 128, *, backward: bool = False) -> float:
        hardware = replace(H100, attention_kernel=kernel)
        lengths = [16384]
        return float(
            attention_kernel_ms(
                hardware, lengths, lengths, heads, width, causal=True, backward=backward
            )
        )

    for backward in (False, True):
        times = [ms(kernel, backward=backward) for kernel in ("fa3", "cudnn", "fa2", "fa1")]
        assert times == sorted(times)
        assert times[2] > 1.5 * times[0]
    assert ms("fa2", heads=64, width=64) > 1.05 * ms("fa2")


def test_products_in_fp8_are_faster_and_read_less() -> None:
    whole = float(matmul_ms(H100, 8192, 4096, 4096))
    eighth = float(matmul_ms(H100, 8192, 4096, 4096, gain=2.0, element_bytes=1))
    assert 0.5 < eighth / whole < 0.6
    together = float(matmul_ms(H100, 1024, 4096, 4096, count=8))
    apart = 8 * float(matmul_ms(H100, 1024, 4096, 4096))
    assert together < 0.9 * apart  # tiles of all fill the device


def test_virtual_stages_shorten_the_bubble_and_keep_more() -> None:
    load = Load(seq_len=8192, batch=16)
    scheme = Scheme(tp=2, pp=4)
    plain = estimate(DEPLOYMENT, scheme, load)
    interleaved = estimate(replace(DEPLOYMENT, virtual_stages=4), scheme, load)
    assert interleaved.terms_ms["pipeline bubble"] == pytest.approx(
        plain.terms_ms["pipeline bubble"] / 4
    )
    # Sends are next to kernels but when filling and draining: 3 of 3 + 8 micro-batches.
    assert interleaved.terms_ms["pipeline sends"] == pytest.approx(
        plain.terms_ms["pipeline sends"] * 3 / 11
    )
    ratio = interleaved.memory_bytes["activations"] / plain.memory_bytes["activations"]
    assert ratio == pytest.approx(1 + 3 / 16)


def test_the_longest_stage_counts_where_pp_does_not_divide_the_layers() -> None:
    """Llama 3 405B has 126 layers: 16 on the longest of 8 stages."""
    large = ModelSizes(hidden=16384, layers=126, heads=128, kv_heads=8, ffn=53248, vocab=128256)
    deployment = replace(DEPLOYMENT, sizes=large, cluster=ClusterHardware(H100, 8, 8))
    assert deployment.stage_layers(8) == 16
    assert replace(deployment, virtual_stages=8).stage_layers(8) == 16
    scheme, load = Scheme(tp=8, pp=8), Load(seq_len=8192, batch=8)
    assert problem(deployment, scheme, load) is None
    staged, whole = (
        read_terms(deployment, text, [8192])["attention"] for text in ("tp8.pp8", "tp8")
    )
    assert staged == pytest.approx(whole * 16 / 126)
    # Embedding and head may stand for a layer each: 128 stages, but no more.
    many = replace(deployment, virtual_stages=16)
    assert (many.stage_layers(8), problem(many, scheme, load)) == (16, None)
    rejection = problem(replace(deployment, virtual_stages=17), scheme, load)
    assert rejection.startswith("136 stages (pp · virtual stages) are more than the 126 layers, ")
    assert many.stage_layers(1) == 126


def test_the_sync_hides_behind_long_backwards_only() -> None:
    load = Load(seq_len=8192, batch=32)
    by_zero = {}
    for zero in (1, 2):
        exposed, hidden = (
            estimate(replace(DEPLOYMENT, zero=zero, sync=how), Scheme(), load)
            for how in ("exposed", "hidden")
        )
        by_zero[zero] = hidden.terms_ms["parameter sync"]
        assert by_zero[zero] < 0.1 * exposed.terms_ms["parameter sync"]
    assert by_zero[1] == by_zero[2]  # gradients are summed on the rank
    short = Load(seq_len=256, batch=16)
    exposed, hidden = (
        estimate(replace(DEPLOYMENT, sync=how), Scheme(), short).terms_ms["parameter sync"]
        for how in ("exposed", "hidden")
    )
    assert 0.5 * exposed < hidden < exposed


def test_gathered_keys_are_not_hidden_and_nothing_is_merged() -> None:
    scheme, lengths = Scheme(ring=8), [65536]
    ring, gathered = (
        attention_ms(
            ClusterHardware(QUIET, 1, 8), LLAMA, scheme, lengths, backward=False, gathered=g
        )
        for g in (False, True)
    )
    kv_bytes = 2 * 2 * 65536 * 1024
    assert float(gathered.ring) == pytest.approx(kv_bytes * 7 / 8 / 360e9 * 1e3)
    assert float(gathered.merge) == 0 < float(ring.merge)
    assert float(gathered.kernel) == pytest.approx(float(ring.kernel), rel=0.1)


def test_elementwise_recomputation_is_between_none_and_the_feed_forward() -> None:
    held_bytes = [
        layer_activation_bytes(LLAMA, how, 1) for how in ("none", "elementwise", "mlp", "full")
    ]
    assert held_bytes == sorted(held_bytes, reverse=True)
    # Its input and the middle sum, q, k, v and the result, gate and up.
    assert held_bytes[1] == 2 * (2 * 4096 + 2 * 4096 + 2 * 1024 + 2 * 14336)
    times = []
    for how in ("none", "elementwise", "full"):
        times.append(sum(read_terms(replace(DEPLOYMENT, recompute=how), "tp1", [8192]).values()))
    assert times == sorted(times)
    assert times[1] < 1.05 * times[0]


def test_activations_that_tp_does_not_split_are_on_every_rank() -> None:
    split, whole = (
        layer_activation_bytes(LLAMA, "none", 8, sequence_parallel=sequence_parallel)
        for sequence_parallel in (True, False)
    )
    assert whole - split == 1.5 * 8 * 4096
    whole_norms = replace(DEPLOYMENT, sequence_parallel=False)
    bound = [
        read_terms(deployment, "tp8", [8192])["memory-bound"]
        for deployment in (DEPLOYMENT, whole_norms)
    ]
    assert bound[1] > 1.5 * bound[0]


@pytest.mark.parametrize(
    ("needed", "expected"),
    [(68.3, "fits"), (68.5, "tight"), (87.9, "tight"), (88.1, "does not fit")],
)
def test_a_tenth_around_the_usable_and_whole_memory_is_tight(needed: float, expected: str) -> None:
    """Of 80 GiB 76 are usable."""
    assert verdict(needed * 2**30, 80 * 2**30) == expected


def test_a_derived_profile_states_its_training_options() -> None:
    fast = replace(H100, attention_kernel="fa3")
    deployment = replace(
        DEPLOYMENT,
        cluster=ClusterHardware(fast, 2, 8),
        precision="fp8",
        gradient_bytes=2,
        tp_overlap=0.5,
        context_parallel="all-gather",
        sequence_parallel=False,
    )
    source = derive_profile(deployment, [Scheme(tp=8)], name="p")["source"]
    assert (
        "fp8 (products 1.8 times as fast), attention by fa3, gradients of 2 bytes, 50 % of tp's "
        "collectives hidden, keys and values gathered, not passed on, norms and residuals whole"
    ) in source
    usual = derive_profile(DEPLOYMENT, [Scheme(tp=8)], name="p")["source"]
    assert "2 nodes of 8 GPUs, bf16, attention by fa2; nothing was measured" in usual


def test_stacks_order_what_a_step_takes_and_ring_steps_cost_more_in_eager() -> None:
    def launch_ms(stack: str, ring: int) -> float:
        scheme = Scheme(ring=ring)
        return read_terms(replace(DEPLOYMENT, stack=stack), scheme, [8192])["launch"]

    def total(stack: str) -> float:
        return sum(read_terms(replace(DEPLOYMENT, stack=stack), "r2", [8192]).values())

    assert total("megatron") < total("compiled") < total("eager")
    # 118 launches of 9 µs in forward and backward of each of 32 layers.
    grown = launch_ms("eager", 3) - launch_ms("eager", 2)
    assert grown == pytest.approx(32 * 2 * 118 * 9e-3)
    assert launch_ms("compiled", 3) - launch_ms("compiled", 2) == pytest.approx(32 * 4 * 5e-3)


def test_eager_launches_are_those_of_the_published_benchmark() -> None:
    """12 layers: 19 ms a micro-batch and 25.4 ms a further rank, within 3 %."""
    small = ModelSizes(hidden=2048, layers=12, heads=16, kv_heads=16, ffn=8192, vocab=32000)
    deployment = replace(DEPLOYMENT, sizes=small, stack="eager")
    alone, two = (read_terms(deployment, scheme, [8192])["launch"] for scheme in ("tp1", "r2"))
    assert alone == pytest.approx(19, rel=0.03)
    assert two - alone == pytest.approx(25.4, rel=0.03)


def test_a_stack_without_runs_is_unchecked_and_contradictions_are_named() -> None:
    assert any("stack eager" in note for note in replace(DEPLOYMENT, stack="eager").notes)
    assert not any("stack" in note for note in replace(DEPLOYMENT, stack="megatron").notes)
    with pytest.raises(ValueError, match=r"tp_overlap 0\.5 contradicts stack eager"):
        replace(DEPLOYMENT, stack="eager", tp_overlap=0.5)
    with pytest.raises(ValueError, match="stack must be one of eager, compiled, megatron"):
        replace(DEPLOYMENT, stack="jit")
    with pytest.raises(ValueError, match="optimizer_shards must divide the cluster's 16 GPUs: 5"):
        replace(DEPLOYMENT, optimizer_shards=5)


def test_ranks_of_a_collective_add_to_its_latency_between_nodes() -> None:
    slow = ClusterHardware(replace(QUIET, inter_rank_us=5.0), 2, 8)
    assert rank_latency_ms(slow, Group(16)) == pytest.approx(15 * 5e-3)
    assert rank_latency_ms(slow, Group(8)) == 0
    quiet = replace(DEPLOYMENT, cluster=ClusterHardware(QUIET, 2, 8), zero=3)
    gathering = [
        read_terms(deployment, "tp1", [8192], 16)["parameter gathering"]
        for deployment in (quiet, replace(quiet, cluster=slow))
    ]
    # Three collectives in each of 32 layers.
    assert gathering[1] - gathering[0] == pytest.approx(3 * 32 * 15 * 5e-3)


def test_hybrid_zero_holds_more_states_and_gathers_within_a_node() -> None:
    load = Load(seq_len=4096, batch=16)
    whole = estimate(replace(DEPLOYMENT, zero=3), Scheme(), load)
    hybrid = estimate(replace(DEPLOYMENT, zero=3, optimizer_shards=8), Scheme(), load)
    states = "optimizer and sharded states"
    assert hybrid.memory_bytes[states] == 2 * whole.memory_bytes[states]
    assert hybrid.terms_ms["parameter gathering"] < whole.terms_ms["parameter gathering"]
    exposed = replace(DEPLOYMENT, zero=1, optimizer_shards=8)
    reduced = estimate(exposed, Scheme(), load).terms_ms["parameter sync"]
    # Scatter and gather over 450 GB/s, and twice an eighth of the gradients over a card of 50.
    held = LLAMA.parameters
    expected = 7 / 8 * 6 * held / 360e6 + 2 * 0.5 * 4 * held / 8 / 40e6
    assert reduced == pytest.approx(expected, rel=0.01)


def test_precisions_in_fewer_bits_are_faster_by_what_the_device_has() -> None:
    gb300 = ClusterHardware(DEVICES["gb300-279gb"], 1, 64)

    def products_ms(precision: str) -> float:
        deployment = replace(DEPLOYMENT, cluster=gb300, precision=precision)
        return read_terms(deployment, "tp1", [8192])["matrix products"]

    assert products_ms("nvfp4") < products_ms("mxfp8") < products_ms("bf16")
    with pytest.raises(ValueError, match="precision nvfp4: h100-80gb has no"):
        replace(DEPLOYMENT, precision="nvfp4")
