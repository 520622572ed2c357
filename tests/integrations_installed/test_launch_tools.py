"""``examples/launch`` under the checkers of each format."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

LAUNCH = Path(__file__).parents[2] / "examples" / "launch"
KUBERNETES = ("1.27", "1.33")
"""Versions whose schemas the manifests have to fit, strictly."""


def test_shell_scripts_pass_shellcheck() -> None:
    program = Path(sys.executable).parent / "shellcheck"
    if not program.exists():
        pytest.skip("shellcheck is not installed")
    subprocess.run([program, LAUNCH / "torchrun.sh", LAUNCH / "slurm.sbatch"], check=True)


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    validation = pytest.importorskip("kubernetes_validate")
    manifests = list(yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text("utf-8")))
    assert [manifest["kind"] for manifest in manifests] == ["Service", "Job"]
    for manifest in manifests:
        validation.validate(manifest, version, strict=True)
    manifests[1]["spec"]["completion"] = 2
    with pytest.raises(validation.ValidationError, match="completion"):
        validation.validate(manifests[1], version, strict=True)


def test_the_task_is_read_by_skypilot() -> None:
    sky = pytest.importorskip("sky")
    task = sky.Task.from_yaml(str(LAUNCH / "skypilot.yaml"))
    assert task.num_nodes == 2
