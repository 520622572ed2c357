"""Owners of whole parameters: all of them, each once, and about as much for every rank."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqplan.plans.views.optimizer_sharding import unit_layouts
from seqplan.plans.views.parameter_layout import Block, ParameterLayout


def matrix(name: str, rows: int, columns: int, *, vector: bool = False) -> ParameterLayout:
    return ParameterLayout(name, (Block(rows),), columns, (0,), vector=vector)


def layer(number: int) -> tuple[str, list[ParameterLayout]]:
    shapes = {"q": (64, 64), "k": (16, 64), "v": (16, 64), "o": (64, 64), "up": (160, 64)}
    matrices = [matrix(f"{number}.{name}", *shape) for name, shape in shapes.items()]
    norms = [matrix(f"{number}.{name}", 64, 1, vector=True) for name in ("before", "after")]
    return f"layer {number}", [norms[0], *matrices, norms[1]]


def test_layers_are_spread_evenly() -> None:
    layouts = unit_layouts([layer(number) for number in range(8)], 8, 4, "by_parameter")
    owned = [sum(layout.room(rank) for layout in layouts) for rank in range(4)]
    assert sum(owned) == sum(layout.elements for layout in layouts)
    assert max(owned) < 1.02 * sum(owned) / 4
    for layout in layouts:  # a layer's vectors lie together
        assert layout.padded == layout.elements
        assert layout.owners is not None
        owner = dict(zip([p.name for p in layout.parameters], layout.owners, strict=True))
        number = layout.name.removeprefix("layer ")
        assert owner[f"{number}.before"] == owner[f"{number}.after"]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=5), max_size=4),
    st.integers(1, 6),
)
def test_every_parameter_has_one_owner_who_owns_all_of_it(
    units: list[list[tuple[int, int]]], ranks: int
) -> None:
    named = [
        (f"u{at}", [matrix(f"u{at}.{i}", *shape) for i, shape in enumerate(shapes)])
        for at, shapes in enumerate(units)
    ]
    layouts = unit_layouts(named, 1, ranks, "by_parameter")
    again = unit_layouts(named, 1, ranks, "by_parameter")
    assert [layout.owners for layout in layouts] == [layout.owners for layout in again]
    largest = max((rows * columns for shapes in units for rows, columns in shapes), default=0)
    loads = [sum(layout.room(rank) for layout in layouts) for rank in range(ranks)]
    assert max(loads) <= sum(loads) / ranks + largest
    for layout, (_, parameters) in zip(layouts, named, strict=True):
        assert sorted(p.name for p in layout.parameters) == [p.name for p in parameters]
        assert layout.owners is not None
        for parameter, at, owner in zip(
            layout.parameters, layout.offsets, layout.owners, strict=True
        ):
            start, stop = layout.iterate_owned(owner)
            assert start <= at <= at + parameter.numel <= stop


def test_other_owners_are_rejected() -> None:
    with pytest.raises(ValueError, match="sharding must be flat or by_parameter, not 'rows'"):
        unit_layouts([layer(0)], 1, 2, "rows")  # type: ignore[arg-type]
