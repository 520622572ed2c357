"""Runs cases of the runtime on a CUDA device that is not there.

``rehearse.py LIBRARIES [--mutation NAME] [CASE …]``: a process for all cases. Prints one JSON
object a line: the case and its counts.
"""

import ctypes
import json
import sys
import traceback
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

from build import find_torch  # noqa: E402


def load(libraries: Path) -> None:
    """Load fake CUDA and torch's libraries, in the order in which symbols win."""
    lib = find_torch() / "lib"
    ctypes.CDLL(str(libraries / "libaccelerator.so"), ctypes.RTLD_GLOBAL)
    for path in (lib / "libc10.so", lib / "libtorch_cpu.so", libraries / "libfake_cuda.so"):
        ctypes.CDLL(str(path))


def main(libraries: str, *names: str) -> None:
    warnings.simplefilter("ignore")
    load(Path(libraries))
    import fake_distributed

    fake_distributed.install()
    from attached_cases import ATTACHED
    from cases import CASES
    from device_cases import DEVICE_CASES
    from kernel_cases import KERNEL_CASES
    from peak_cases import PEAKS

    every = {**CASES, **PEAKS, **DEVICE_CASES, **ATTACHED, **KERNEL_CASES}
    if names[:1] == ("--mutation",):
        from mutations import MUTATIONS

        MUTATIONS[names[1]]()
        names = names[2:]
    for name in names or every:
        try:
            result = every[name]()
        except BaseException as error:  # a case that fails is a result
            trace = traceback.format_exc(limit=-12)
            result = {"error": f"{type(error).__name__}: {error}", "trace": trace}
        print(json.dumps({"case": name, **result}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
