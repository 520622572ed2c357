"""A vision encoder's sizes, from the config.json of a vision-language model's release.

Of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and InternVL: layers, attention over an image, a frame or a
window, and how many patches become one token of the language model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqplan.costs.model_files.description_file import read_fields

GATED_FFN, PLAIN_FFN = 3, 2
"""Matrices of a feed-forward layer with a gate, and of one without."""


@dataclass(frozen=True, kw_only=True)
class VisionTower:
    """Layers of a vision encoder and the projection of its patches to tokens.

    ``matrices``: of a feed-forward layer; ``merge``: patches on a side of the square that becomes
    one token; ``width``: hidden size of the language model; ``patch``: pixels on a side;
    ``window``: patches that attend to each other in all layers but ``full_layers``, None if all
    layers are of whole images; ``extra_patches``: of an image beyond its pixels.
    """

    layers: int
    hidden: int
    heads: int
    ffn: int
    matrices: int
    patch: int
    merge: int
    width: int
    window: int | None = None
    full_layers: int
    extra_patches: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "ffn", "patch", "merge", "width", "window"):
            size = getattr(self, name)
            if name == "window" and size is None:
                continue
            if type(size) is not int or size < 1:
                raise ValueError(f"vision tower: {name} must be a whole number above 0: {size!r}")
        if self.hidden % self.heads:
            raise ValueError(
                f"vision tower: hidden {self.hidden} is no multiple of {self.heads} heads. State "
                "both as the encoder has them"
            )
        if not 0 <= self.full_layers <= self.layers:
            raise ValueError(
                f"vision tower: full_layers {self.full_layers}, of {self.layers} layers. Give a "
                "number from 0 to layers"
            )

    @classmethod
    def from_config(cls, path: Path | str) -> VisionTower:
        """Read a release's config.json; ``ValueError`` with the path for an unknown encoder."""
        config = read_fields(Path(path))
        if not isinstance(config.get("vision_config"), dict):
            raise ValueError(f"{path}: has no vision_config. Give a vision-language model's")
        kind = str(config.get("model_type"))
        if kind not in _READERS:
            known = ", ".join(sorted(_READERS))
            raise ValueError(
                f"{path}: model_type {kind}: its encoder is none of {known}. State one of them"
            )
        try:
            return _READERS[kind](config, config["vision_config"])
        except KeyError as error:
            raise ValueError(f"{path}: vision_config lacks {error}. State it") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    @property
    def layer_products(self) -> int:
        """Elements of a layer's matrices, of which each takes a multiplication a patch."""
        return 4 * self.hidden**2 + self.matrices * self.hidden * self.ffn

    @property
    def projection_products(self) -> float:
        """Multiplications a patch of the projection to the language model."""
        merged = self.hidden * self.merge**2
        return (merged**2 + merged * self.width) / self.merge**2

    def list_sequences(self, grids: Iterable[Sequence[int]]) -> list[int]:
        """List the patches of each frame of a sample's images, which attend to themselves.

        ``grids``: (frames, patch rows, patch columns) of each image, as ``image_grid_thw`` has.
        ``ValueError`` for a grid that is none.
        """
        sequences = []
        for grid in grids:
            sizes = [int(size) for size in grid]
            if len(sizes) != 3 or min(sizes) < 1:
                raise ValueError(f"grid {sizes}: must be frames, rows and columns above 0")
            frames, rows, columns = sizes
            sequences += [rows * columns + self.extra_patches] * frames
        return sequences

    def count_tokens(self, grids: Iterable[Sequence[int]]) -> int:
        """Count the tokens that a sample's images become in the language model."""
        patches = sum(n - self.extra_patches for n in self.list_sequences(grids))
        return patches // self.merge**2


Config = Mapping[str, Any]


def _read_qwen2(config: Config, vision: Config) -> VisionTower:
    hidden = vision["embed_dim"]
    return _make_qwen(
        vision,
        hidden=hidden,
        ffn=int(hidden * vision.get("mlp_ratio", 4)),
        width=vision["hidden_size"],
    )


def _read_qwen25(config: Config, vision: Config) -> VisionTower:
    return _make_qwen(
        vision,
        hidden=vision["hidden_size"],
        ffn=vision["intermediate_size"],
        width=vision["out_hidden_size"],
        matrices=GATED_FFN,
        window=(vision["window_size"] // vision["patch_size"]) ** 2,
        full_layers=len(vision["fullatt_block_indexes"]),
    )


def _read_qwen3(config: Config, vision: Config) -> VisionTower:
    return _make_qwen(
        vision,
        hidden=vision["hidden_size"],
        ffn=vision["intermediate_size"],
        width=vision["out_hidden_size"],
    )


def _make_qwen(
    vision: Config,
    *,
    hidden: int,
    ffn: int,
    width: int,
    matrices: int = PLAIN_FFN,
    window: int | None = None,
    full_layers: int | None = None,
) -> VisionTower:
    """Make a tower by the names that all of Qwen's configurations have."""
    layers = vision["depth"]
    return VisionTower(
        layers=layers,
        hidden=hidden,
        heads=vision["num_heads"],
        ffn=ffn,
        matrices=matrices,
        patch=vision["patch_size"],
        merge=vision["spatial_merge_size"],
        width=width,
        window=window,
        full_layers=layers if full_layers is None else full_layers,
    )


def _read_internvl(config: Config, vision: Config) -> VisionTower:
    text = config.get("text_config") or config["llm_config"]
    patch = vision["patch_size"]
    return VisionTower(
        layers=vision["num_hidden_layers"],
        hidden=vision["hidden_size"],
        heads=vision["num_attention_heads"],
        ffn=vision["intermediate_size"],
        matrices=PLAIN_FFN,
        patch=patch[0] if isinstance(patch, list) else patch,
        merge=round(1 / config["downsample_ratio"]),
        width=text["hidden_size"],
        full_layers=vision["num_hidden_layers"],
        extra_patches=1,
    )


_READERS = {
    "qwen2_vl": _read_qwen2,
    "qwen2_5_vl": _read_qwen25,
    "qwen3_vl": _read_qwen3,
    "qwen3_vl_moe": _read_qwen3,
    "internvl": _read_internvl,
    "internvl_chat": _read_internvl,
}
