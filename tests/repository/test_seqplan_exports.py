"""Public names of ``seqplan`` and of the runtime."""

from collections import Counter
from importlib import import_module, metadata
from importlib.util import find_spec
from pkgutil import iter_modules

import pytest

import seqplan.runtime

NAMESPACES = [
    import_module(f"seqplan.runtime.{name}")
    for name in seqplan.runtime.__all__
    if find_spec(f"seqplan.runtime.{name}") is not None
]
"""Packages and modules of the runtime that are public themselves."""
PACKAGES = (seqplan, seqplan.runtime, *NAMESPACES)


def test_every_name_is_there() -> None:
    for package in PACKAGES:
        assert list(package.__all__) == sorted(package.__all__)
        for name in set(package.__all__) - {"__version__"}:
            value = getattr(package, name).__name__
            assert value.removeprefix(f"{package.__name__}.") == name
    for package in (seqplan, seqplan.runtime):
        with pytest.raises(AttributeError, match="has no attribute 'Plann'"):
            _ = package.Plann
    assert seqplan.__version__ == metadata.version("seqplan")


def test_the_runtime_has_few_names_at_its_top_and_each_in_one_place() -> None:
    assert len(seqplan.runtime.__all__) <= 20
    public = [name for package in PACKAGES[1:] for name in package.__all__]
    assert [name for name, count in Counter(public).items() if count > 1] == []


def test_no_public_name_is_that_of_a_submodule() -> None:
    """Importing the submodule would put it in the place of the name."""
    for package in PACKAGES[1:]:
        folder = package.__path__ if hasattr(package, "__path__") else []
        submodules = {module.name for module in iter_modules(folder)}
        names = {name for name in package.__all__ if getattr(package, name) not in NAMESPACES}
        assert not submodules & names
