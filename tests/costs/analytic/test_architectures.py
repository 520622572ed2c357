"""Layers beyond those of a dense decoder: time, memory and sync against sums done by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from deployments import LLAMA3_8B as LLAMA
from deployments import QWEN3_30B as QWEN
from deployments import deploy, read_terms

from seqplan import Profile, Scheme
from seqplan.costs.analytic.attention import AttentionMask, attention_ms
from seqplan.costs.analytic.complete import complete
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.estimate import model_flops
from seqplan.costs.analytic.memory import layer_activation_bytes, peak_bytes, state_bytes
from seqplan.costs.architecture import Architecture
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_files.model_config import read_model_config
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profiled_scheme import ProfileError
from seqplan.planner.simulation.flops import model_flops as flops_of_step
from seqplan.planner.sync.derive import count_parameters

CONFIGS = Path(__file__).parents[1] / "model_configs"
CLUSTER = deploy(LLAMA, "h100-80gb").cluster


def of_config(name: str) -> ModelSizes:
    return ModelSizes.from_mapping(read_model_config(CONFIGS / f"{name}.json"))


def special(**sizes: int) -> ModelSizes:
    return replace(LLAMA, architecture=Architecture(**sizes))  # type: ignore[arg-type]


def terms(sizes: ModelSizes, scheme: str, lengths: list[int]) -> dict[str, float]:
    return read_terms(deploy(sizes, "h100-80gb"), scheme, lengths)


@pytest.mark.parametrize("length", [1, 5, 8, 9, 64, 100])
def test_keys_of_a_query_match_a_count(length: int) -> None:
    """Pairs with itself counted half, as the causal half of l² is."""
    for mask, first_seen in (
        (AttentionMask(), lambda query: 0),
        (AttentionMask(window=8), lambda query: max(0, query - 8)),
        (AttentionMask(chunk=8), lambda query: query - query % 8),
    ):
        pairs = sum(query + 0.5 - first_seen(query) for query in range(length))
        if mask.window and length > 8:
            pairs = sum(min(query + 0.5, 8) for query in range(length))
        assert float(mask.seen(np.array([float(length)]))[0]) * length == pytest.approx(pairs)


def test_windows_are_linear_beyond_themselves_and_nothing_before() -> None:
    windowed, full = special(window_layers=32, window=1024), LLAMA
    for length in (256, 1024):
        assert terms(windowed, "tp1", [length]) == pytest.approx(terms(full, "tp1", [length]))
    short, long = (terms(windowed, "tp1", [n])["attention"] for n in (16384, 65536))
    assert long == pytest.approx(4 * short, rel=0.05)
    half = special(window_layers=16, window=1024)
    several = [terms(sizes, "tp1", [65536])["attention"] for sizes in (windowed, full, half)]
    assert several[2] == pytest.approx((several[0] + several[1]) / 2)


def test_a_ring_with_windows_fetches_only_their_keys() -> None:
    arguments = (CLUSTER, LLAMA, Scheme(ring=8), [131072])
    full = attention_ms(*arguments, backward=False)
    cut = attention_ms(*arguments, backward=False, mask=AttentionMask(window=1024))
    assert float(cut.merge) == 0 < float(full.merge)
    assert float(cut.kernel) < 0.05 * float(full.kernel)
    alone_ms = attention_ms(*arguments, backward=False, mask=AttentionMask(window=2048))
    assert float(alone_ms.ring) > 1.8 * float(cut.ring) - 0.02
    # Sequences that the window does not cut go round as ever.
    mask = AttentionMask(window=1024)
    mixed = attention_ms(*arguments[:3], [1024, 131072], backward=False, mask=mask)
    assert float(mixed.merge) > 0


def test_a_token_runs_through_its_experts_only_and_all_of_them_are_held() -> None:
    sizes = QWEN.architecture
    assert (sizes.experts, sizes.experts_per_token) == (128, 8)
    dense = replace(QWEN, ffn=8 * 768, architecture=Architecture())
    products = ("matrix products", "experts")
    sparse_ms, dense_ms = (
        sum(terms(config, "tp1", [32768]).get(name, 0.0) for name in products)
        for config in (QWEN, dense)
    )
    # 128 smaller products, each of fewer rows and none full, and rows moved to and from them.
    assert dense_ms < sparse_ms < 2.5 * dense_ms
    # With few tokens the weights that are read count: of 128 experts, not of 8.
    few = [
        sum(terms(config, "tp1", [64]).get(name, 0.0) for name in products)
        for config in (QWEN, dense)
    ]
    assert few[0] > 5 * few[1]
    assert state_bytes(deploy(QWEN, "h100-80gb"))[0] == 12 * QWEN.parameters
    assert count_parameters(QWEN.shape, (4, 1))[0] == pytest.approx(QWEN.parameters / 4, rel=1e-4)
    assert model_flops(QWEN, 1024) < 0.15 * 6 * QWEN.parameters * 1024
    assert flops_of_step(QWEN.shape, [1024, 512]) == model_flops(QWEN, 1024) + model_flops(
        QWEN, 512
    )
    difference = layer_activation_bytes(QWEN, "none", 1) - layer_activation_bytes(dense, "none", 1)
    # The hidden states that go to each expert, and come from it.
    assert difference == 2 * 2 * 8 * 2048


def test_latent_attention_makes_wide_keys_from_few_elements() -> None:
    latent = special(kv_rank=512, query_rank=1536, rope_dim=64, nope_dim=128, value_dim=128)
    wide = replace(LLAMA, kv_heads=32, head_dim=160)
    latent = replace(latent, kv_heads=32)
    assert terms(latent, "u8", [32768])["attention"] == terms(wide, "u8", [32768])["attention"]
    assert latent.layers_parameters < wide.layers_parameters
    assert terms(latent, "u8", [32768])["ulysses"] == terms(wide, "u8", [32768])["ulysses"]


def test_linear_attention_is_linear_and_a_separate_term() -> None:
    sizes = of_config("qwen3-next-80b")
    short, long = (terms(sizes, "u4", [n])["linear attention"] for n in (8192, 65536))
    assert long == pytest.approx(8 * short)
    assert terms(sizes, "u4", [8192] * 8)["linear attention"] == pytest.approx(long)
    assert "linear attention" not in terms(LLAMA, "u4", [8192])


def test_two_matrices_are_less_than_three() -> None:
    ungated = special(ungated=True)
    assert LLAMA.parameters - ungated.parameters == 32 * 4096 * 14336
    fewer, more = (terms(sizes, "tp1", [8192])["matrix products"] for sizes in (ungated, LLAMA))
    assert fewer < more
    difference = layer_activation_bytes(LLAMA, "none", 1) - layer_activation_bytes(
        ungated, "none", 1
    )
    assert difference == 2 * 14336


def test_completing_a_profile_keeps_its_architecture() -> None:
    deployment = deploy("gpt-oss-20b", "h100-80gb")
    schemes = [Scheme(tp=8), Scheme(ulysses=8), Scheme(ulysses=4, ring=2)]
    document = derive_profile(deployment, schemes, name="p")
    assert document["model"]["experts"] == 32
    assert document["model"]["window"] == 128
    profile = Profile.from_document(document, "p")
    assert profile.shape.sizes == deployment.sizes
    assert ", nowhere further than " in profile.residuals
    alone = derive_profile(deployment, [Scheme()], name="p")
    alone["schemes"][0]["origin"] = "measured"
    completed = complete(Profile.from_document(alone, "p"), CLUSTER, schemes)
    derived = Profile.from_document(completed, "p").by_scheme
    for scheme in schemes:
        for length in (2048, 65536):
            assert derived[scheme].latency.micro_batch_ms([length]) == pytest.approx(
                profile.by_scheme[scheme].latency.micro_batch_ms([length]), rel=0.06
            )
    dense = derive_profile(replace(deployment, sizes=LLAMA), schemes, name="p")
    other = {"window_layers": 1, "window": 8}
    with pytest.raises(ValueError, match="has nothing beyond a dense decoder, not "):
        complete(Profile.from_document(dense, "p"), CLUSTER, [Scheme(ring=8)], sizes=other)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"experts": 0.5}, "experts must be a whole number: 0.5"),
        ({"sinks": 1}, "sinks must be true or false: 1"),
        (
            {"window_layers": 99, "window": 8},
            "99 window, chunk, linear and state-space layers of 32",
        ),
        ({"window_layers": 3}, "window_layers 3 requires window too"),
        ({"expert_layers": 3, "experts": 8, "expert_ffn": 4}, "requires experts_per_token too"),
        ({"experts_per_token": 3}, "experts_per_token 3 is more than the 0 experts"),
        ({"window": -1}, "window must be from 0 to 10,000,000, not -1"),
        ({"heads_of_state": 1}, "heads_of_state"),
        ({"head_dim": 0}, "head_dim"),
        ({"tied": 1}, ".tied: must be true or false: 1"),
        ({"head_dim": 64, "heads": None}, ".head_dim: requires heads"),
    ],
)
def test_a_profile_with_a_wrong_architecture_is_rejected(
    model: dict[str, object], message: str
) -> None:
    document = derive_profile(deploy(LLAMA), [Scheme(ulysses=8)], name="p")
    document["model"].update(model)
    with pytest.raises(ProfileError) as raised:
        Profile.from_document(document, "p")
    assert str(raised.value).startswith("p: model")
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ["gemma-3-1b", "gpt-oss-20b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("scheme", [Scheme(tp=4), Scheme(ulysses=4), Scheme(ulysses=2, ring=2)])
def test_coefficients_and_max_len_are_near_the_estimate(name: str, scheme: Scheme) -> None:
    sizes = ModelSizes.from_mapping(MODELS[name]) if name in MODELS else of_config(name)
    deployment = deploy(sizes, "h200-141gb")
    profile = Profile.from_document(derive_profile(deployment, [scheme], name="x"), "x")
    entry = profile.by_scheme[scheme]
    for lengths in ([1024], [8192], [65536], [512] * 32, [4096] * 8):
        whole = sum(read_terms(deployment, scheme, lengths, 16 // scheme.gpus).values())
        assert entry.latency.micro_batch_ms(lengths) == pytest.approx(whole, rel=0.1)
    if tokens := profile.model(entry, 16, 1).max_len:
        peaks = [
            sum(peak_bytes(deployment, scheme, 16 // scheme.gpus, share * tokens).values())
            for share in (0.95, 1.05)
        ]
        assert peaks[0] < 0.95 * 141e9 < peaks[1]
