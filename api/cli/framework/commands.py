"""The commands, in the order of use: their names, modules and one-line descriptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its module below ``seqplan.api.cli`` and its line in the list of commands."""

    module: str
    help: str


COMMANDS = {
    "lengths": Command("lengths", "read, describe and keep the sequence lengths of a data set"),
    "profile list": Command("profile.list_profiles", "list the profiles that ship"),
    "profile show": Command("profile.show_profile", "show a profile's schemes on a cluster"),
    "profile measure": Command("profile.measure_profile", "measure a model on this device"),
    "profile derive": Command("profile.derive_profile", "derive a profile from data sheets"),
    "profile merge": Command("profile.merge_samples", "fit a profile to measured samples"),
    "profile refit": Command("profile.refit_profile", "correct a profile by measured step times"),
    "profile verify": Command("profile.verify_device", "check this device's kernels and rates"),
    "profile validate": Command(
        "profile.validate_model", "compare the analytic model with published results"
    ),
    "estimate": Command("estimate", "estimate time and memory from data sheets"),
    "propose": Command("propose", "propose strategies for a data set"),
    "plan": Command("plan", "plan steps, and answer whether that pays"),
    "explain": Command("explain", "explain one step of a plan file"),
    "check plans": Command("check.check_plans", "check a plan file"),
    "check training": Command(
        "check.check_training", "execute plans on real ranks and compare with one process"
    ),
    "export": Command("export", "write the ids of each rank's micro-batches"),
    "trace": Command("trace", "write one step as a Chrome trace"),
    "compare": Command("compare", "compare plans with other systems, simulated"),
    "log": Command("log", "list the jobs of a service, and the steps of one"),
    "serve": Command("serve", "serve plans over HTTP"),
    "sidecar": Command("sidecar", "serve one job's plans next to it"),
    "backup": Command("backup", "copy a service's store to one file"),
    "restore": Command("restore", "make a store from a backup"),
    "demo": Command("demo", "plan a real data set end to end"),
    "completion": Command("completion", "print a script that completes commands in a shell"),
}
"""Command → its module and help. A command of two words is in a group."""

GROUPS = {
    "profile": "measure, derive and inspect profiles",
    "check": "check plan files, and training on them",
}
"""Group → its line in the list of commands."""


def select_command(words: Sequence[str]) -> str | None:
    """Return the command that the leading words name; None if they name none."""
    named = [word for word in words if not word.startswith("-")]
    for count in (1, 2):
        if (name := " ".join(named[:count])) in COMMANDS:
            return name
    return None
