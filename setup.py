"""The native extension of the planner; everything else is in pyproject.toml.

It uses Python's limited API: one wheel of a platform runs on Python 3.11 and all later ones.
Without a compiler the build goes on, and Python does greedy placement with the same result.
SEQPLAN_PURE=1 builds a wheel without the extension, for any platform.
"""

import os
import sysconfig

from setuptools import Extension, setup

LIMITED = not sysconfig.get_config_var(
    "Py_GIL_DISABLED"
)  # free-threaded builds have no limited API

FILL = Extension(
    "seqplan.planner.placement.fill_kernel",
    [f"planner/placement/{name}.c" for name in ("fill_kernel", "exchange", "sized")],
    depends=["planner/placement/fill_kernel.h"],
    # No -march and no contraction: a fused multiply-add would change bits.
    extra_compile_args=["-O2", "-ffp-contract=off", "-Werror=implicit-function-declaration"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")] if LIMITED else [],
    py_limited_api=LIMITED,
    optional=True,
)

setup(
    ext_modules=[] if os.environ.get("SEQPLAN_PURE") else [FILL],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if LIMITED else {},
)
