"""Sizes read from a config.json, compared with transformers' models on the meta device."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lazy_modules import require

from seqplan.costs.model_files.config_defaults import read_class_defaults
from seqplan.costs.model_files.config_keys import (
    GATED,
    MODELLED,
    SIZE_KEYS,
    SPARSE,
    TEXT_TYPES,
    UNGATED,
)
from seqplan.costs.model_files.model_config import read_model_config
from seqplan.costs.model_sizes import ModelSizes

torch = require("torch")
transformers = require("transformers", (5, 23))

WITHIN = 0.005
REMOTE = {"baichuan", "exaone", "internlm2", "kimi_k2", "minicpm"}
"""Model types whose code is not in transformers."""

STATED: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8, "head_dim": 128},
}
"""Keys that every release of a type states and its class leaves open."""

RIGHT = sorted((GATED | UNGATED | SPARSE) - REMOTE)
WITH_IMAGES = ("gemma3", "internvl", "llama4", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl")
"""Types whose text is a part, that is read alone."""

OTHERS = (
    *("afmoe", "aria_text", "bart", "bert", "biogpt", "bloom", "codegen", "cohere2_moe"),
    *("ctrl", "deepseek_v32", "diffllama", "doge", "emu3", "falcon", "falcon_h1"),
    *("gemma3n_text", "gemma4_text", "glm4_moe_lite", "glm_moe_dsa", "gpt_bigcode", "gpt_neo"),
    *("jamba", "kimi_linear", "lfm2", "longcat_flash", "mamba2"),
    *(
        "minimax",
        "mllama",
        "mpt",
        "olmo_hybrid",
        "opt",
        "qwen3_5_text",
        "recurrent_gemma",
        "zamba2",
    ),
)
"""Types with layers that are not modeled."""

CORE = {key for name in ("hidden", "layers", "heads", "ffn", "vocab") for key in SIZE_KEYS[name]}


counts: dict[tuple[type, str], int] = {}
"""Parameters by a configuration's class and values: most keys that are left out change neither."""


def count_parameters(config: Any) -> int:
    key = type(config), config.to_json_string(use_diff=False)
    if key not in counts:
        text_alone = config.model_type.endswith("_vl_text") or "_vl_moe" in config.model_type
        kind = transformers.AutoModel if text_alone else transformers.AutoModelForCausalLM
        with torch.device("meta"):
            model = kind.from_config(config)
        model.tie_weights()
        counts[key] = sum(p.numel() for p in {id(p): p for p in model.parameters()}.values())
        if text_alone and not getattr(config, "tie_word_embeddings", False):  # the output head
            counts[key] += config.vocab_size * config.hidden_size
    return counts[key]


def read_error(path: Path, file: dict[str, Any], parameters: int) -> float | str:
    """Return the relative error of the sizes of ``file``, or the error message."""
    path.write_text(json.dumps(file, default=str))
    try:
        return abs(ModelSizes.from_mapping(read_model_config(path)).parameters / parameters - 1)
    except ValueError as error:
        return str(error)


def wide_file(kind: str) -> dict[str, Any]:
    """A file of the type whose heads are not hidden/heads elements by default."""
    config_class = transformers.CONFIG_MAPPING[kind]
    usual = config_class(**STATED.get(kind, {}))
    key = "n_embd" if hasattr(usual, "n_embd") else "hidden_size"
    wide = config_class(**{**STATED.get(kind, {}), key: getattr(usual, key) * 3 // 2})
    return dict(wide.to_diff_dict())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity_warning()


def test_enough_types_are_compared() -> None:
    assert len(RIGHT) >= 45
    assert len(RIGHT) + len(OTHERS) >= 60


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", RIGHT)
def test_parameters_are_those_of_transformers(tmp_path: Path, kind: str) -> None:
    """With the class's values, and with each key left out that is no size."""
    path = tmp_path / "config.json"
    config_class = transformers.CONFIG_MAPPING[kind]
    files = [config_class(**STATED.get(kind, {})).to_diff_dict()]
    if kind != "helium":  # its class runs only if heads · head_dim is hidden
        files.append(wide_file(kind))
    for file in files:
        error = read_error(path, file, count_parameters(config_class(**file)))
        assert isinstance(error, float), error
        assert error <= WITHIN
        for key in (set(file) & MODELLED) - CORE - {"model_type"}:
            without = {name: value for name, value in file.items() if name != key}
            try:
                parameters = count_parameters(config_class(**without))
            except (TypeError, ValueError, KeyError, ZeroDivisionError, RuntimeError):
                continue  # the class itself needs the key
            error = read_error(path, without, parameters)
            if isinstance(error, str):  # by the name of the key, or of one that requires it
                assert key in error or kind in error
            else:
                assert error <= WITHIN, f"without {key}: {error:.1%} off"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", OTHERS)
def test_other_types_are_rejected_by_name(tmp_path: Path, kind: str) -> None:
    file = transformers.CONFIG_MAPPING[kind]().to_diff_dict()
    path = tmp_path / "config.json"
    path.write_text(json.dumps(file, default=str))
    with pytest.raises(ValueError, match="not modeled") as rejected:
        read_model_config(path)
    assert f'model_type "{kind}' in str(rejected.value)  # or that of its text, emu3_text_model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", WITH_IMAGES)
def test_text_of_a_model_with_images_is_read_alone(tmp_path: Path, kind: str) -> None:
    config = transformers.CONFIG_MAPPING[kind]()
    file = config.to_diff_dict() | {"tie_word_embeddings": False}
    text = config.get_text_config()
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(text)
    parameters = sum(p.numel() for p in model.parameters()) + text.vocab_size * text.hidden_size
    path = tmp_path / "config.json"
    error = read_error(path, file, parameters)
    assert isinstance(error, float), error
    assert error <= WITHIN
    assert read_model_config(path)["left_out"] == (
        "parts of the model next to its text_config: vision_config",
    )
    # Releases before transformers 5 state the sizes next to vision_config.
    if kind in TEXT_TYPES:
        flat = file.pop("text_config") | file | {"model_type": kind}
        error = read_error(path, flat, parameters)
        assert isinstance(error, float), error
        assert error <= WITHIN


@pytest.mark.parametrize("kind", sorted(SPARSE))
def test_sparse_type_without_its_number_of_experts_is_rejected(tmp_path: Path, kind: str) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"intermediate_size": 128, "vocab_size": 100, "num_key_value_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **sizes}))
    with pytest.raises(ValueError, match=f'model_type "{kind}": the number of experts is missing'):
        read_model_config(path)


@pytest.mark.parametrize("kind", sorted(set(read_class_defaults()) - REMOTE))
def test_class_defaults_are_those_of_transformers(kind: str) -> None:
    stated = transformers.CONFIG_MAPPING[kind].__dataclass_fields__
    defaults = read_class_defaults()[kind]
    assert {key: stated[key].default for key in defaults} == defaults


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("gemma3_text", {"_sliding_window_pattern": 6}),
        ("gemma2", {"sliding_window_size": 4096}),
        ("apertus", {"qk_norm": True}),
        ("starcoder2", {"mlp_type": "default"}),
        (
            "ernie4_5_moe",
            {"moe_norm_min": 1e-12, "moe_capacity": [64, 64, 64], "moe_gate": "top2_fused"}
            | {"moe_use_aux_free": True},
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_keys_of_releases_are_accepted(tmp_path: Path, kind: str, keys: dict[str, Any]) -> None:
    config_class = transformers.CONFIG_MAPPING[kind]
    file = {**config_class().to_diff_dict(), **keys}
    error = read_error(tmp_path / "config.json", file, count_parameters(config_class()))
    assert isinstance(error, float), error
    assert error <= WITHIN


@pytest.mark.filterwarnings("ignore")
def test_kimi_k2_has_the_sizes_of_its_class(tmp_path: Path) -> None:
    config_class = transformers.CONFIG_MAPPING["deepseek_v3"]
    sizes = {"hidden_size": 7168, "num_attention_heads": 64, "num_key_value_heads": 64}
    config = config_class(n_routed_experts=384, first_k_dense_replace=1, vocab_size=163840, **sizes)
    file = {**config.to_diff_dict(), "model_type": "kimi_k2", "num_nextn_predict_layers": 0}
    error = read_error(tmp_path / "config.json", file, count_parameters(config))
    assert isinstance(error, float), error
    assert error <= WITHIN


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "smollm3"])
@pytest.mark.parametrize("first", [0, 5, 12])
def test_window_layers_are_those_of_the_type(kind: str, first: int, tmp_path: Path) -> None:
    """Of a config without ``layer_types``; Qwen3-MoE has none, as all layers have the window."""
    keys = {"num_hidden_layers": 12, "max_window_layers": first, "sliding_window": 64}
    config = transformers.AutoConfig.for_model(kind, **keys, use_sliding_window=True)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * 12
    stated = {key: value for key, value in config.to_dict().items() if key != "layer_types"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**stated, "model_type": kind}, default=str))
    sizes = ModelSizes.from_mapping(read_model_config(path))
    assert sizes.architecture.window_layers == kinds.count("sliding_attention")
