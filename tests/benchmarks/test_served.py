"""CPU time of a served process: also of children that ended."""

import subprocess
import sys

from benchmarks.services import Served

CHILD = "import time\nwhile time.process_time() < 0.3: pass"
PARENT = f"""import subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}])
print()
input()
"""


def test_children_that_ended_are_counted() -> None:
    served = Served.__new__(Served)
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as served.process:
        served.process.stdout.readline()
        counted = served.cpu_s()
        served.process.communicate("\n")
    assert counted >= 0.3 - 0.02  # of ticks of 10 ms
