"""One whole copy of the package when a checkout's ``seqplan`` folder hides an installed one.

The checkout keeps the sub-packages next to this folder, and an install puts them into it. A process
whose working folder is the checkout (``python -c``, ``python -m``, a script of the root) imports
this folder before the installed package, and finds no sub-package in it.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def use_whole_package(name: str) -> None:
    """Make ``name`` importable with its sub-packages.

    An installed package takes the place of this one: processes that start elsewhere, such as the
    ``seqplan`` command itself, import that one, and its native extension is compiled. Without one
    the checkout's folders are used. Nothing changes when an editable install finds them.
    """
    if find_spec(f"{name}.plans") is not None:
        return
    for entry in sys.path:
        if Path(entry, name).resolve() == _FOLDER or not Path(entry, name, "plans").is_dir():
            continue
        spec = PathFinder.find_spec(name, [entry])
        if spec is not None and spec.loader is not None:
            sys.modules[name] = module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return
    sys.modules[name].__path__.append(str(_FOLDER.parent))
