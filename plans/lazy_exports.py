"""A package's public API whose names are imported on first use (PEP 562)."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^    from (\S+) import \(?\s*(\w+) as \2\b", re.MULTILINE)


def lazy_names(package: str, path: str) -> tuple[Callable[[str], Any], list[str]]:
    """Return the ``__getattr__`` and ``__all__`` of ``package``, whose file is at ``path``.

    Its names are declared once, as type checkers read them: by lines
    ``from module import name as name`` under ``if TYPE_CHECKING``. ``AttributeError`` for others.
    """
    text = Path(path).read_text(encoding="utf-8")
    homes = {name: module for module, name in _IMPORT.findall(text)}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        return getattr(import_module(homes[name]), name)

    return load, sorted(homes)
