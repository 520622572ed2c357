"""Bad input of ``seqplan estimate``: one line, with the field or option."""

from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import call, complaint
from estimate_files import NODE, device, sizes

COUNT = "must be an integer of 1 or more"


FILES = {
    sizes: [
        ({"heads": 30}, "model.json: hidden 4096 is no multiple of 30 heads"),
        ({"hidden": 10**400}, "model.json: hidden must be from 1 to 10,000,000, not 1000"),
        ({"hidden": 0}, f"model.json: hidden {COUNT}: 0"),
        ({"layers": "32"}, f"model.json: layers {COUNT}: '32'"),
        ({"tied": 1}, "model.json: tied must be true or false: 1"),
        ({"kv_head": 8}, "model.json: unknown field: 'kv_head'. Did you mean kv_heads?"),
        ({"base": "llama-8b"}, "model.json: base must be a known model (small, llama-7b, "),
        ({"base": 8}, "or a config.json: 8"),
        ({"base": "none.json"}, "none.json: cannot be read: No such file or directory"),
    ],
    device: [
        ({"base": None}, "device.json: base is missing. Name the nearest of a100-40gb, "),
        ({"base": ["h100"]}, "device.json: base must be a device: ['h100']. Name"),
        ({"base": "b20"}, "device.json: base 'b20': unknown. Did you mean b200-180gb?"),
        ({"intra_gb_s": 0}, "device.json: intra_gb_s must be from 0.001 to 1e15, not 0.0"),
        ({"inter_gb_s": 1e-300}, "inter_gb_s must be from 0.001 to 1e15, not 1e-300"),
        ({"memory_gib": 0}, "device.json: memory_gib must be from 0.001 to 900,000: 0"),
        ({"matmul_efficiency": 2}, "matmul_efficiency must be from 0.01 to 1, not 2.0"),
        ({"attention_kernel": "fa3"}, "'fa3' is not known on ampere devices; there: fa1, fa2"),
        ({"attention_kernel": 3}, "device.json: attention_kernel must be a kernel's name: 3"),
        ({"peak_tflops": "989"}, "device.json: peak_tflops must be a number: '989'"),
        ({"peak_tflops": 10**400}, "peak_tflops must be a finite number: 1000"),
        ({"peak_tflop": 989}, "unknown field: 'peak_tflop'. Did you mean peak_tflops?"),
        ({"inter_rails": 1.5}, f"device.json: inter_rails {COUNT}: 1.5"),
        ({"gpus_per_node": 10**9}, "cluster: gpus_per_node must be from 1 to 1,024, not 1000"),
    ],
}


@pytest.mark.parametrize(
    ("write", "values", "message"), [(write, *row) for write, rows in FILES.items() for row in rows]
)
def test_a_bad_file_is_one_line(
    tmp_path: Path, write: Callable[..., Path], values: dict[str, object], message: str
) -> None:
    option, base = ("--model", "llama-7b") if write is sizes else ("--hardware", "a800-80gb")
    line = complaint(call(*NODE, option, write(tmp_path, **{"base": base, **values})))
    assert message in line
    assert line.count("device.json: ") <= 1


def test_files_that_are_no_objects_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    assert "device.toml: cannot be read: No such file" in complaint(call(*NODE, "--hardware", path))
    path.write_text("base = ")
    assert "device.toml: not TOML (" in complaint(call(*NODE, "--hardware", path))
    path = tmp_path / "device.json"
    path.write_text('{"base": "a800-80gb", "base": "h100-80gb"}')
    twice = "device.json: not JSON (field 'base' is written twice. Remove one)"
    assert twice in complaint(call(*NODE, "--hardware", path))
    path = tmp_path / "device.json"
    path.write_text("[1]")
    assert "device.json: must be an object of fields" in complaint(call(*NODE, "--hardware", path))
    assert "device.json: must be an object of fields" in complaint(call(*NODE, "--model", path))
