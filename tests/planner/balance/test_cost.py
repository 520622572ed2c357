"""Costs of a host's micro-batches: from profiles, from a model and a device, from measurements."""

import json
from pathlib import Path

import numpy as np
import pytest
from deployments import LLAMA3_8B_CONFIG

from seqplan import Cost, Scheme, find_profile


def test_of_a_profile() -> None:
    profile = find_profile("llama-7b-a800-80gb")
    entry = next(entry for entry in profile.schemes if entry.scheme == Scheme(tp=2))
    for source, scheme in (("llama-7b-a800-80gb", "tp2"), (profile, Scheme(tp=2))):
        cost = Cost.from_profile(source, scheme)
        assert (cost.a, cost.b, cost.c) == (entry.latency.a, entry.latency.b, entry.latency.c)
    with pytest.raises(ValueError, match=r"has no scheme tp64\. It has tp"):
        Cost.from_profile(profile, "tp64")
    with pytest.raises(ValueError, match=r"tp2\.pp4: has stages"):
        Cost.from_profile(profile, "tp2.pp4")


@pytest.mark.parametrize("kind", ["LlamaConfig", "Qwen3MoeConfig", "GptOssConfig", "Gemma3Config"])
def test_of_a_configuration(kind: str, tmp_path: Path) -> None:
    config = getattr(pytest.importorskip("transformers"), kind)()
    config.save_pretrained(tmp_path)
    given, of_folder = (Cost.from_model(c, "h100-80gb", gpus=64) for c in (config, tmp_path))
    assert given == of_folder


def test_of_a_model_and_a_device(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA3_8B_CONFIG))
    one, two = (Cost.from_model(config, "a100-80gb", tp=tp) for tp in (1, 2))
    assert 0.4 < two.b / one.b < 0.8
    assert 0.4 < two.a / one.a < 0.6
    # About 6 FLOPs a parameter and token at 40 to 70 % of the peak.
    flops = 6 * 8e9
    assert 0.3 < flops / (one.b * 1e-3) / 312e12 < 0.8
    with pytest.raises(ValueError, match=r"device 'abacus': unknown\. There are a100"):
        Cost.from_model(config, "abacus")
    with pytest.raises(ValueError, match=r"device 'h10': unknown\. Did you mean h100-80gb\?"):
        Cost.from_model(config, "h10")
    assert Cost.from_model(config, "h100") == Cost.from_model(config, "h100-80gb")
    with pytest.raises(ValueError, match="model 'some': neither a known model"):
        Cost.from_model("some", "a100-80gb")
    with pytest.raises(TypeError, match=r"model: None\. Give a name, a path or a configuration"):
        Cost.from_model(None, "a100-80gb")  # type: ignore[arg-type]
    assert (
        Cost.from_model(LLAMA3_8B_CONFIG, "a100-80gb")
        == Cost.from_model(tmp_path, "a100-80gb")
        == one
    )
    with pytest.raises(ValueError, match="model llama: not modeled: ssm_cfg"):
        Cost.from_model({**LLAMA3_8B_CONFIG, "ssm_cfg": 4}, "a100-80gb")
    with pytest.raises(ValueError, match="gpus 12: must be whole nodes of 8"):
        Cost.from_model(config, "a100-80gb", gpus=12)
    config.write_text(json.dumps({"model_type": "llama", "hidden_size": 4096}))
    with pytest.raises(ValueError, match="does not state layers"):
        Cost.from_model(config, "a100-80gb")


def test_coefficients_are_corrected_by_measurements() -> None:
    random = np.random.default_rng(0)
    stated, true = Cost(1e-6, 0.05, 5.0), Cost(2e-6, 0.09, 30.0)

    def steps(count: int, factor: float | None) -> list[tuple[list[list[int]], float]]:
        measured = []
        for _ in range(count):
            micro_batches = [
                random.integers(100, 9000, random.integers(1, 5)).tolist()
                for _ in range(random.integers(1, 6))
            ]
            cost = true if factor is None else stated
            time = sum(cost.micro_batch_ms(micro) for micro in micro_batches)
            measured.append((micro_batches, time * (factor or 1.0) * random.normal(1, 0.002)))
        return measured

    corrected, how = stated.calibrate(steps(2, 1.7))
    assert corrected == stated
    assert how.startswith("kept: 2 ")
    scaled, how = stated.calibrate(steps(8, 1.7))
    assert how.startswith("scaled")
    assert scaled.b == pytest.approx(stated.b * 1.7, rel=0.02)
    fitted, how = stated.calibrate(iter(steps(80, None)))
    assert how.startswith("fitted")
    assert (fitted.a, fitted.b) == pytest.approx((true.a, true.b), rel=0.1)
    assert fitted.c == pytest.approx(true.c, rel=0.4)
    with pytest.raises(ValueError, match=r"measured -1\.0 ms"):
        stated.calibrate([([[5]], -1)])
