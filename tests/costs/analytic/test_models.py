"""Presets against the sizes their names promise."""

from pathlib import Path

import pytest

from seqplan.costs.model_files import listed_models
from seqplan.costs.model_files.description_file import read_listed
from seqplan.costs.model_files.listed_models import MODELS, find_release
from seqplan.costs.model_files.model_file import find_model
from seqplan.costs.model_sizes import ModelSizes


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-7b", 6.738),
        ("llama-13b", 13.016),
        ("llama-32b", 32.529),
        ("llama3-8b", 8.030),
        ("llama3-70b", 70.55),
        ("llama3.2-1b", 1.236),
        ("llama3.2-3b", 3.213),
        ("mistral-7b", 7.248),
        ("mixtral-8x7b", 46.70),
        ("qwen2.5-7b", 7.616),
        ("qwen2.5-14b", 14.77),
        ("qwen2.5-32b", 32.76),
        ("qwen2.5-72b", 72.71),
        ("qwen3-4b", 4.022),
        ("qwen3-8b", 8.191),
        ("qwen3-14b", 14.77),
        ("qwen3-32b", 32.76),
        ("qwen3-30b-a3b", 30.53),
        ("gpt-oss-20b", 20.91),
        ("gpt-7b", 6.86),
        ("gpt-13b", 13.1),
        ("gpt-30b", 32.6),
    ],
)
def test_parameters_of_presets(name: str, billions: float) -> None:
    """The LLaMA counts are those of the released weights (32b: LLaMA-33B's)."""
    assert ModelSizes.from_mapping(MODELS[name]).parameters == pytest.approx(
        billions * 1e9, rel=2e-3
    )


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3-8b"),
        ("meta-llama/Meta-Llama-3-70B", "llama3-70b"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3-70b"),
        ("meta-llama/Llama-3.2-1B", "llama3.2-1b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("Qwen/Qwen2.5-Coder-7B", None),
        ("Qwen3-8B/", None),
    ],
)
def test_a_release_is_a_known_model(release: str, name: str | None) -> None:
    assert find_release(release) == name


def test_a_folder_precedes_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_model("Qwen/Qwen3-8B") == MODELS["qwen3-8b"]
    (tmp_path / "Qwen" / "Qwen3-8B").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"'Qwen/Qwen3-8B': a folder without config.json"):
        find_model("Qwen/Qwen3-8B")


def test_every_preset_has_a_source() -> None:
    path = Path(listed_models.__file__).with_name("models.toml")
    assert all(values["source"] for values in read_listed(path).values())


def test_sizes_that_do_not_fit_together() -> None:
    with pytest.raises(ValueError, match="hidden 100 is no multiple of 3 heads"):
        ModelSizes(hidden=100, layers=1, heads=3, kv_heads=1, ffn=1, vocab=1)
    with pytest.raises(ValueError, match="heads 4 must be a multiple of kv_heads 3"):
        ModelSizes(hidden=64, layers=1, heads=4, kv_heads=3, ffn=1, vocab=1)
    with pytest.raises(ValueError, match="layers must be from 1 to 10,000,000, not 0"):
        ModelSizes(hidden=64, layers=0, heads=4, kv_heads=2, ffn=1, vocab=1)
