"""The parameters of ``Llama`` as tensor and pipeline parallelism cut them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from seqplan.plans.views.optimizer_sharding import NamedUnit
from seqplan.plans.views.parameter_layout import Block, ParameterLayout

NORMS, EMBEDDING, HEAD = "norms", "embedding", "head"
"""Units other than those of the layers."""


class LlamaSizes(Protocol):
    """Sizes of a model that units need; ``head_width``: elements of one head."""

    @property
    def hidden(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_width(self) -> int: ...
    @property
    def ffn(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def tied(self) -> bool: ...


def layer_unit(layer: int) -> str:
    """Name a layer's unit."""
    return f"layers.{layer}"


def llama_units(config: LlamaSizes) -> list[tuple[str, list[ParameterLayout]]]:
    """List the units in the order of their first use: name and parameters.

    All norms are one unit, which every rank holds: they are a few elements of each
    layer, which all ranks would request from few. Their gradients are partial, as every tp rank
    has seen other rows.
    """
    hidden, width, layers = config.hidden, config.head_width, config.layers
    norms = [
        _norm(f"layers.{layer}.{name}.weight", hidden, layer)
        for layer in range(layers)
        for name in ("attention_norm", "ffn_norm")
    ]
    queries = Block(config.heads, width)
    keys = Block(config.kv_heads, width, config.heads // config.kv_heads)
    words = Block(config.vocab)
    units = [
        (NORMS, [*norms, _norm("norm.weight", hidden, layers)]),
        (
            EMBEDDING,
            [
                ParameterLayout(
                    "embedding.weight", (words,), hidden, (-1, layers) if config.tied else (-1,)
                )
            ],
        ),
    ]
    for layer in range(layers):
        prefix, at = f"layers.{layer}.", (layer,)
        units.append(
            (
                layer_unit(layer),
                [
                    ParameterLayout(f"{prefix}qkv.weight", (queries, keys, keys), hidden, at),
                    ParameterLayout(
                        f"{prefix}output.weight", (queries,), hidden, at, transposed=True
                    ),
                    *(_feed_forward(prefix, config.ffn, hidden, at) if config.ffn else ()),
                ],
            )
        )
    if not config.tied:
        units.append((HEAD, [ParameterLayout("head.weight", (words,), hidden, (layers,))]))
    return units


def list_units(config: LlamaSizes, experts: int) -> list[NamedUnit]:
    """List a model's units but for those of experts.

    ``experts``: in each layer, 0 for none. A layer's router is a unit that every rank holds, as
    norms are.
    """
    units: list[NamedUnit] = []
    layers = {layer_unit(layer): layer for layer in range(config.layers)}
    for name, layouts in llama_units(config):
        units.append((name, layouts))
        if experts and name in layers:
            at = layers[name]
            router = _whole(f"{name}.router.weight", Block(experts), config.hidden, at)
            units.append((router_unit(at), [router]))
    return units


def list_expert_units(config: LlamaSizes, held: int, width: int) -> list[NamedUnit]:
    """List the units of a layer's ``held`` experts on a rank, each ``width`` wide; none for 0.

    Every rank on the stage of a layer holds all of its unit, whatever its tp.
    """
    if not held:
        return []
    hidden = config.hidden
    return [
        (
            expert_unit(layer),
            [
                _whole(f"{name}.experts.gate_up", Block(held, 2 * width), hidden, layer),
                _whole(f"{name}.experts.down", Block(held, hidden), width, layer),
            ],
        )
        for layer in range(config.layers)
        for name in (layer_unit(layer),)
    ]


def interleave_units(units: Sequence[NamedUnit], experts: Sequence[NamedUnit]) -> list[NamedUnit]:
    """Put units of experts after those of their routers, in the order of use."""
    of_layer = {name.removesuffix(".experts"): (name, layouts) for name, layouts in experts}
    ordered: list[NamedUnit] = []
    for unit in units:
        ordered.append(unit)
        layer = unit[0].removesuffix(".router")
        if layer != unit[0] and layer in of_layer:
            ordered.append(of_layer[layer])
    return ordered


def router_unit(layer: int) -> str:
    """Name the unit of a layer's router."""
    return f"{layer_unit(layer)}.router"


def expert_unit(layer: int) -> str:
    """Name the unit of a layer's experts."""
    return f"{layer_unit(layer)}.experts"


def _whole(name: str, block: Block, columns: int, layer: int) -> ParameterLayout:
    return ParameterLayout(name, (block,), columns, (layer,), "partial")


def _feed_forward(
    prefix: str, ffn: int, hidden: int, at: tuple[int, ...]
) -> tuple[ParameterLayout, ParameterLayout]:
    rows = Block(ffn)
    return (
        ParameterLayout(f"{prefix}gate_up.weight", (rows, rows), hidden, at),
        ParameterLayout(f"{prefix}down.weight", (rows,), hidden, at, transposed=True),
    )


def _norm(name: str, hidden: int, layer: int) -> ParameterLayout:
    return ParameterLayout(name, (Block(hidden),), 1, (layer,), "partial", vector=True)
