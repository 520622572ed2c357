"""Builds the libraries that make a CPU build of torch take fake CUDA tensors."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

SHIMS = Path(__file__).with_name("shims")
FLAGS = ("-shared", "-fPIC", "-O1", "-std=c++20")


def find_torch() -> Path:
    """The folder of torch, which is not imported: libraries are loaded before it."""
    spec = importlib.util.find_spec("torch")
    assert spec.origin is not None
    return Path(spec.origin).parent


def why_not() -> str:
    """Why a rehearsal cannot run here; empty if it can."""
    if shutil.which("g++") is None:
        return "no g++ to build fake CUDA with"
    torch = find_torch()
    if not (torch / "include").is_dir():
        return "torch has no headers"
    if any((torch / "lib").glob("libtorch_cuda*")):
        return "torch is a CUDA build: use the device"
    return ""


def build(folder: Path) -> None:
    """Build both libraries into ``folder``."""
    torch = find_torch()
    include = torch / "include"
    paths = (f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-L{torch / 'lib'}")
    for name, options in (("accelerator", ()), ("fake_cuda", (*paths, "-ltorch_cpu", "-lc10"))):
        library = folder / f"lib{name}.so"
        command = ["g++", *FLAGS, str(SHIMS / f"{name}.cpp"), "-o", str(library), *options]
        subprocess.run(command, check=True, capture_output=True)
