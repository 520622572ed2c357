"""A service process whose log goes to a file, for tests of its log and its end."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from command_forks import CommandProcess
from service_process import PATIENCE_S, ServedProcess


@contextmanager
def serving_logged(log: Path, *arguments: str | Path | int) -> Iterator[ServedProcess]:
    """``seqplan serve`` until the block ends, which may end it; ``log``: what it wrote."""
    with log.open("w") as output:
        process = CommandProcess("serve", *arguments, stderr=output)
    try:
        ends = time.monotonic() + PATIENCE_S
        while (address := re.search(r"^serving on (http://\S+)\n", log.read_text(), re.M)) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < ends, log.read_text()
            time.sleep(0.02)
        yield ServedProcess(address[1], process=process)
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE_S)
