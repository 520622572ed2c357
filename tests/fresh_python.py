"""Programs in a new interpreter, for tests of imports and of limits of a process."""

import subprocess
import sys


def run_python(*arguments: object, quiet: bool = True) -> str:
    """Run ``python arguments…``, which must succeed; return stdout.

    ``quiet``: nothing may be on stderr.
    """
    command = [sys.executable, *map(str, arguments)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert not (quiet and completed.stderr), completed.stderr
    return completed.stdout
