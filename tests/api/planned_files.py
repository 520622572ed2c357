"""What the tests of the command line share: files that it made itself."""

from dataclasses import dataclass
from pathlib import Path

from command_line import Outcome, call

MAX_LEN = 4096


@dataclass(frozen=True)
class PlannedFiles:
    """Files of one data set, profile and cluster; shared by tests, which must not change them."""

    profile: str | Path
    gpus: int
    tokens: int
    lengths: Path
    proposal: Path
    plans: Path
    steps: int = 4

    @property
    def propose_arguments(self) -> tuple[str | int | Path, ...]:
        """The command that made the proposal, without its output and choice of schemes."""
        return (
            *("propose", "--profile", self.profile, "--gpus", self.gpus, self.lengths),
            *("--max-len", MAX_LEN, "--tokens", self.tokens),
        )

    @property
    def plan_arguments(self) -> tuple[str | int | Path, ...]:
        """The command that made the plans, without its output."""
        return ("plan", "--proposal", self.proposal, self.lengths, "--steps", self.steps)


def propose(lengths: Path, output: Path, *more: str | int | Path) -> Outcome:
    """A proposal for 8 GPUs; later options replace earlier ones."""
    return call(
        *("propose", "--profile", "gpt-7b-a100-40gb", "--gpus", 8, lengths),
        *("--max-len", MAX_LEN, "-o", output, *more),
    )
