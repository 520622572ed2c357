"""A service or sidecar process of a benchmark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType


class Served:
    """``seqplan serve`` or ``sidecar`` on loopback, until the block ends.

    ``package``: a folder with the package of another release, None for this one.
    """

    def __init__(
        self, *arguments: object, cores: Sequence[int] = (), package: Path | None = None
    ) -> None:
        other = {} if package is None else {"PYTHONPATH": str(package)}
        command = [sys.executable, "-m", "seqplan.api.cli", *map(str, arguments)]
        if cores:
            command = ["taskset", "--cpu-list", ",".join(map(str, cores)), *command]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=package, env=os.environ | other
        )
        assert self.process.stderr is not None
        stderr = ""
        while not (address := re.search(r"serving on http://(\S+):(\d+)", stderr)):
            line = self.process.stderr.readline()
            if not line:
                raise RuntimeError(f"the service did not start: {stderr}")
            stderr += line
        self.host, self.port = address[1], int(address[2])

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def cpu_s(self) -> float:
        """Count CPU seconds of the process and of its children, also of those that ended."""
        ticks = os.sysconf("SC_CLK_TCK")
        parents, spent = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            process = int(path.parent.name)
            parents[process], spent[process] = int(fields[1]), sum(map(int, fields[11:15]))
        ours = {self.process.pid}
        while more := {child for child, parent in parents.items() if parent in ours} - ours:
            ours |= more  # the planner's processes come from a server of their kind
        return sum(spent.get(process, 0) for process in ours) / ticks

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def kill(self) -> None:
        """SIGKILL, which nothing can prepare for."""
        self.process.kill()
        self._reap()

    def end(self) -> None:
        self.process.terminate()
        self._reap()

    def _reap(self) -> None:
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
