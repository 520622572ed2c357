"""A package's public API whose names are imported on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], namespaces: Collection[str] = ()
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of ``package``.

    ``homes``: its modules, and the names in each; ``namespaces``: modules that are public
    themselves. ``AttributeError`` for other names.
    """
    modules = {name: module for module, names in homes.items() for name in names}

    def attribute(name: str) -> Any:
        if name in namespaces:
            return import_module(f"{package}.{name}")
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return attribute
