"""Layers with experts that ranks share, measured on real ranks, and the profile of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import call, complaint
from ranks import run_ranks

from seqplan import Profile, Scheme
from seqplan.costs.fit.measured_profile import (
    ProfiledDevices,
    fit_all,
    fit_shared,
    profile_document,
)
from seqplan.costs.fit.pooling import merge_runs
from seqplan.profiler.measure.design import design
from seqplan.profiler.measure.run import Task, measure
from seqplan.runtime.models.llama import ModelConfig

EXPERTS = {"experts": 4, "experts_per_token": 2, "expert_ffn": 48}
CONFIG = ModelConfig(hidden=32, heads=4, kv_heads=2, ffn=0, vocab=50, layers=4, **EXPERTS)
CHECKPOINT = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "decoder_sparse_step": 1,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def task(degree: int, *schemes: Scheme) -> Task:
    """A short run on CPUs."""
    points = tuple(design(16, 64, points=4))
    return Task(CONFIG, 1, "cpu", "float32", schemes, points, 1, expert_parallel=degree)


def measured(rank: int, world_size: int, path: str, degree: int) -> int:
    """Measure two schemes on ranks that share experts."""
    schemes = (Scheme(), Scheme(tp=2)) if degree > 1 else (Scheme(),)
    _, samples, syncs = measure(task(degree, *schemes), Path(path), rank, world_size)
    assert not syncs
    return len(samples)


@pytest.mark.parametrize("degree", [1, 2])
def test_experts_on_ranks_are_measured(tmp_path: Path, degree: int) -> None:
    path = tmp_path / "samples.jsonl"
    counts = run_ranks(measured, 2, str(path), degree, timeout_s=180)
    assert counts[0] > 0 == counts[1]
    measured_on, samples = merge_runs([path])
    assert measured_on.expert_parallel == degree
    for sample in samples:
        assert len(sample.experts_ms) == len(sample.experts_yardstick_ms)
        assert bool(sample.experts_ms) == (degree > 1)
    fit = fit_all(measured_on, samples)
    devices = ProfiledDevices("cpu", 2, 1e9)
    document = profile_document(fit, devices, name="experts", source="a test")
    profile = Profile.from_document(document, "experts")
    assert profile.expert_parallel == degree
    experts = 4 * 4 * 3 * 32 * 48
    assert profile.memory.resident_expert_bytes == 8 * experts
    sizes = profile.shape.sizes
    assert profile.memory.resident_layer_bytes == 8 * (sizes.layers_parameters - experts)
    for entry in profile.schemes:
        assert 0 <= entry.b_shared <= entry.latency.b
    if degree > 1:
        assert sorted(profile.by_scheme) == [Scheme(), Scheme(tp=2)]
        # Times of so small a model are mostly noise: a line instead of them is found again.
        for known in (0.25, 0.0):
            lines = [replace(s, experts_ms=(5.0 + known * s.tokens,)) for s in samples]
            of_layer = [4 / (s.layers * s.scheme.pp) for s in samples]
            shared = fit_shared(measured_on, lines)
            assert set(of_layer) == {of_layer[0]}
            assert shared == {s: pytest.approx(known * of_layer[0]) for s in profile.by_scheme}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--expert-parallel", "2"), "--expert-parallel 2: does not divide the 1 ranks"),
        (("--expert-parallel", "3"), "expert_parallel = 3 does not divide the 4 experts"),
    ],
)
def test_bad_degrees_are_rejected(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps(CHECKPOINT))
    output = tmp_path / "profile.json"
    command = ("profile", "measure", "--model", str(model), "-o", str(output))
    assert message in complaint(call(*command, *options))
    tp = call(*command, "--schemes", "tp2")
    assert "tp2: the runtime does not split experts over tp. Add --expert-parallel" in tp.err
    assert tp.code == 2
    assert not output.exists()
