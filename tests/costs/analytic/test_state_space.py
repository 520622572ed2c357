"""State-space layers: sizes of releases, a term linear in the tokens, a published run."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deployments import deploy, read_terms

from seqplan.costs.analytic.estimate import Load, estimate
from seqplan.costs.analytic.expert_parallel import ExpertParallelism
from seqplan.costs.analytic.memory import layer_activation_bytes
from seqplan.costs.architecture import Architecture
from seqplan.costs.model_files.model_config import read_model_config
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.scheme_rules import scheme_problem
from seqplan.plans.scheme import Scheme

NANO = Path(__file__).parents[1] / "model_configs" / "nemotron-3-nano-30b.json"
SUPER = NANO.with_name("nemotron-3-super-120b.json")
GRANITE = {
    "model_type": "granitemoehybrid",
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_n_groups": 1,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 256,
    "mamba_expand": 2,
    "vocab_size": 100352,
    "tie_word_embeddings": True,
}
"""Granite 4.0 H Small, config.json of its release."""


def read(tmp_path: Path, config: dict[str, Any]) -> ModelSizes:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return ModelSizes.from_mapping(read_model_config(path))


def nano(**changes: int) -> ModelSizes:
    sizes = ModelSizes.from_mapping(read_model_config(NANO))
    return replace(sizes, architecture=replace(sizes.architecture, **changes))


def expert_terms_of(sizes: ModelSizes) -> dict[str, float]:
    deployment = deploy(sizes, "h100-80gb", 8, experts=ExpertParallelism(degree=64))
    return read_terms(deployment, "tp1", [8192], 64)


def terms(sizes: ModelSizes, scheme: str, lengths: list[int]) -> dict[str, float]:
    return read_terms(deploy(sizes, "h100-80gb", 1), scheme, lengths)


def test_sizes_are_those_of_releases(tmp_path: Path) -> None:
    sizes = nano()
    # "31.6B" parameters, of which a token runs through "3.6B" with embeddings.
    assert sizes.parameters == pytest.approx(31.58e9, rel=1e-3)
    active = sizes.active_parameters + sizes.embedding_parameters
    assert active == pytest.approx(3.58e9, rel=1e-3)
    special = sizes.architecture
    assert (sizes.layers, special.state_layers, special.expert_layers) == (29, 23, 23)
    assert (sizes.attending_layers, special.bare_layers, sizes.dense_layers) == (6, 6, 0)
    assert ModelSizes.from_mapping(sizes.as_dict()) == sizes
    granite = read(tmp_path, GRANITE)
    assert granite.parameters == pytest.approx(32e9, rel=0.02)
    of_token = granite.active_parameters + granite.embedding_parameters
    assert of_token == pytest.approx(9e9, rel=0.04)
    dense = read(tmp_path, {**GRANITE, "num_local_experts": 0})
    assert (dense.ffn, dense.architecture.expert_layers) == (1536, 0)


def test_the_scan_is_linear_in_tokens_and_split() -> None:
    sizes = nano()
    short, long = (terms(sizes, "u4", [n])["state space"] for n in (8192, 65536))
    assert long == pytest.approx(8 * short)
    assert terms(sizes, "u4", [8192] * 8)["state space"] == pytest.approx(long)
    assert terms(sizes, "tp2.u2", [65536])["state space"] == pytest.approx(long)
    assert long < terms(nano(state_size=256), "u4", [65536])["state space"] < 2 * long
    attention = terms(sizes, "u4", [65536])["attention"]
    full = replace(sizes, architecture=Architecture())
    assert terms(full, "u4", [65536])["attention"] == pytest.approx(29 / 6 * attention)
    assert "state space" not in terms(full, "u4", [65536])


def test_a_bare_layer_lacks_a_feed_forward() -> None:
    sizes = replace(nano(), architecture=Architecture(ungated=True, bare_layers=6))
    fed = replace(sizes, architecture=Architecture(ungated=True))
    matrices = 2 * 2688 * 1856 + 2688  # and a norm
    assert fed.layers_parameters - sizes.layers_parameters == 6 * matrices
    kept_bytes = layer_activation_bytes(fed, "none", 1) - layer_activation_bytes(sizes, "none", 1)
    # The residual sum, the normed input, the expanded result before and after its function.
    assert kept_bytes == pytest.approx(6 / 29 * (2 * 2688 + 2 * 2688 + 4 * 1856))
    longer, shorter = (terms(of, "tp2", [8192]) for of in (fed, sizes))
    for term in ("matrix products", "memory-bound", "tp communication"):
        assert longer[term] > shorter[term]


def test_schemes_split_heads_and_groups() -> None:
    shape = nano().shape
    assert scheme_problem(Scheme(tp=2, ulysses=4), shape) is None
    assert scheme_problem(Scheme(ring=2), shape) == (
        "no ring passes on the state of 23 state-space layers"
    )
    one_group = nano(state_groups=1).shape
    assert scheme_problem(Scheme(ulysses=8), one_group) is None
    assert "does not divide 1 groups of 64 state-space heads" in str(
        scheme_problem(Scheme(tp=2), one_group)
    )


def test_experts_of_a_latent_width_are_reached_by_fewer_elements() -> None:
    """Nemotron 3 Super; transformers' model on the meta device has as many parameters."""
    sizes = ModelSizes.from_mapping(read_model_config(SUPER))
    assert sizes.parameters == 120_668_687_360
    active = sizes.active_parameters + sizes.embedding_parameters
    assert active == pytest.approx(12.77e9, rel=1e-3)
    wide = replace(sizes, architecture=replace(sizes.architecture, expert_latent=0))
    fewer = 40 * (2 * 512 * 2688 * (4096 - 1024) - 2 * 4096 * 1024)
    assert wide.parameters - sizes.parameters == fewer
    latent, whole = (expert_terms_of(model) for model in (sizes, wide))
    assert latent["expert exchange"] == pytest.approx(whole["expert exchange"] / 4, rel=0.05)
    assert latent["experts"] < whole["experts"] / 2
    assert latent["matrix products"] > whole["matrix products"]
    rows = 40 / 48 * 22 * (4096 - 1024) * 2 * 2 - 40 / 48 * 2 * 1024
    kept_bytes = layer_activation_bytes(wide, "none", 1) - layer_activation_bytes(sizes, "none", 1)
    assert kept_bytes == pytest.approx(rows)


def test_a_published_run_is_predicted() -> None:
    """NeMo AutoModel, docs/performance-summary, DGX-H100, 26.02: 15.614 s. It set no constant.

    Whether it recomputes is not stated.
    """
    experts = ExpertParallelism(degree=8, dispatcher="deepep")
    deployment = deploy(nano(), "h100-80gb", 1, zero=3, stack="compiled", experts=experts)
    estimated = estimate(deployment, Scheme(), Load(seq_len=4096, batch=512, micro_batch=4))
    assert estimated.iteration_ms == pytest.approx(15614, rel=0.06)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"hybrid_override_pattern": "MXM"}, "hybrid_override_pattern must be blocks: M, *, E and"),
        ({"hybrid_override_pattern": "EM"}, "has a feed-forward that follows no mixer"),
        ({"hybrid_override_pattern": "ME-"}, "has a feed-forward that follows no mixer"),
        ({"hybrid_override_pattern": None}, "layers_block_type must be blocks"),
        ({"chunk_size": 0}, "mamba_chunk_size null: is missing, and state-space layers want it"),
        ({"ssm_state_size": "big"}, 'ssm_state_size must be a whole number: "big"'),
        ({"moe_latent_size": "big"}, 'moe_latent_size must be a whole number: "big"'),
        ({"model_type": "bamba", "attn_layer_indices": 3}, "attn_layer_indices must be a list"),
    ],
)
def test_wrong_keys_are_named(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, json.loads(NANO.read_text()) | keys)
