"""Vision encoders: their products, counted by torch on transformers' models, and their costs."""

import json
from pathlib import Path
from typing import Any

import pytest

from seqplan import Cost, Phase, VisionTower, balance

QWEN25 = {
    "depth": 4,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_heads": 4,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "window_size": 56,
    "out_hidden_size": 96,
    "fullatt_block_indexes": [3],
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "vision_config": {
            "depth": 3,
            "embed_dim": 64,
            "hidden_size": 96,
            "mlp_ratio": 4,
            "num_heads": 4,
            "patch_size": 14,
            "spatial_merge_size": 2,
        }
    },
    "qwen2_5_vl": {"vision_config": QWEN25},
    "qwen3_vl": {
        "vision_config": {
            "depth": 3,
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_heads": 4,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "out_hidden_size": 96,
            "deepstack_visual_indexes": [],
        }
    },
}


def write_config(folder: Path, kind: str, fields: dict[str, Any]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": kind, **fields}))
    return path


@pytest.mark.parametrize("kind", CONFIGS)
def test_products_are_those_that_torch_counts(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    models = pytest.importorskip("transformers").models
    from torch.utils.flop_counter import FlopCounterMode

    tower = VisionTower.from_config(write_config(tmp_path, kind, CONFIGS[kind]))
    module = getattr(models, kind)
    stem = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[kind]
    config = getattr(module, f"{stem}VisionConfig")(**CONFIGS[kind]["vision_config"])
    config._attn_implementation = "sdpa"
    modeling = getattr(module, f"modeling_{kind}")
    names = {"qwen2_vl": "Qwen2VisionTransformerPretrainedModel"}
    names["qwen2_5_vl"] = "Qwen2_5_VisionTransformerPretrainedModel"
    model = getattr(modeling, names.get(kind, f"{stem}VisionModel"))(config)
    grids = [(1, 8, 4), (2, 4, 4)]
    patches = sum(tower.list_sequences(grids))
    assert patches == 64
    pixels = torch.randn(patches, 3 * 2 * tower.patch**2)
    with FlopCounterMode(display=False) as counter:
        model(pixels, grid_thw=torch.tensor(grids))
    of_operations = counter.get_flop_counts()["Global"]
    products = sum(
        n for operation, n in of_operations.items() if str(operation) in ("aten.mm", "aten.addmm")
    )
    expected = 2 * patches * (tower.layers * tower.layer_products + tower.projection_products)
    assert products == pytest.approx(expected)


def test_frames_attend_apart_and_merge(tmp_path: Path) -> None:
    tower = VisionTower.from_config(write_config(tmp_path, "qwen2_5_vl", CONFIGS["qwen2_5_vl"]))
    assert (tower.window, tower.full_layers) == (16, 1)
    grids = [(1, 32, 24), (3, 4, 6)]
    assert tower.list_sequences(grids) == [768, 24, 24, 24]
    assert tower.count_tokens(grids) == (768 + 72) // 4
    assert tower.list_sequences([]) == []
    with pytest.raises(ValueError, match="frames, rows and columns above 0"):
        tower.list_sequences([(1, 0, 4)])


def test_an_internvl_tile_has_one_patch_more(tmp_path: Path) -> None:
    vision = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "patch_size": [14, 14],
    }
    fields = {"vision_config": vision, "text_config": {"hidden_size": 96}, "downsample_ratio": 0.5}
    tower = VisionTower.from_config(write_config(tmp_path, "internvl", fields))
    assert tower.list_sequences([(1, 32, 32)] * 2) == [1025, 1025]
    assert tower.count_tokens([(1, 32, 32)] * 2) == 512


def test_windows_make_attention_linear(tmp_path: Path) -> None:
    whole = {**QWEN25, "fullatt_block_indexes": [0, 1, 2, 3]}
    windows = {**QWEN25, "fullatt_block_indexes": []}
    full, cut = (
        Cost.from_vision_tower(
            write_config(tmp_path, "qwen2_5_vl", {"vision_config": vision}), "h100-80gb"
        )
        for vision in (whole, windows)
    )
    assert full.a > 0
    assert cut.a == 0
    # Sequences of one window cost the same either way.
    assert cut.work_ms(16) == pytest.approx(full.work_ms(16))
    frozen = Cost.from_vision_tower(tmp_path / "config.json", "h100-80gb", trained=False)
    assert frozen.b == pytest.approx(cut.b / 3)


def test_samples_with_images_are_balanced(tmp_path: Path) -> None:
    tower = VisionTower.from_config(write_config(tmp_path, "qwen2_5_vl", CONFIGS["qwen2_5_vl"]))
    grids = [[(1, 16, 16)], [], [(1, 8, 8), (2, 8, 8)], [(1, 24, 16)]] * 8
    vision = Phase(
        "vision",
        [tower.list_sequences(sample) for sample in grids],
        Cost.from_vision_tower(tower, "h100-80gb"),
    )
    text = Phase(
        "text",
        [500 + tower.count_tokens(sample) for sample in grids],
        Cost.from_model("llama3-8b", "h100-80gb"),
        capacity=8_192,
    )
    balanced = balance(ranks=4, loads=[vision, text])
    assert balanced.gap < 0.05
    placed = sorted(i for rank in balanced.micro_batches for part in rank for i in part)
    assert placed == list(range(32))


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("llava", {"vision_config": {}}, "model_type llava: its encoder is none of internvl"),
        ("qwen2_vl", {}, "has no vision_config"),
        ("qwen2_vl", {"vision_config": {"depth": 2}}, "vision_config lacks 'embed_dim'"),
        (
            "qwen2_5_vl",
            {"vision_config": {**QWEN25, "num_heads": 5}},
            "hidden 64 is no multiple of 5 heads",
        ),
        (
            "qwen2_5_vl",
            {"vision_config": {**QWEN25, "window_size": 7}},
            "window must be a whole number above 0: 0",
        ),
    ],
)
def test_configs_that_are_not_modeled_are_rejected(
    kind: str, fields: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_config(tmp_path, kind, fields)
    with pytest.raises(ValueError, match=message) as error:
        VisionTower.from_config(path)
    assert str(path) in str(error.value)
