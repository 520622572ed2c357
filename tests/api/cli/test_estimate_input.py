"""Bad input of ``seqplan estimate``: one line, with the field or option."""

from pathlib import Path

import pytest
from command_line import call, complaint
from estimate_files import CONFIGS, NODE, device, sizes

COUNT = "must be an integer of 1 or more"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--hardware", "b20"), "--hardware 'b20': unknown. Did you mean b200-180gb? There"),
        (("--model", "llama-8b"), "file of sizes (.json, .toml). Did you mean llama3-8b? Or give"),
        (("--tp", "1,x"), "argument --tp: must be an integer of 1 or more: 'x'"),
        (("--tp", "3"), "no scheme can run: tp3: its 3 GPUs do not divide the cluster's 8"),
        (("--batch", 7), "no scheme can run: tp1: batch 7 is no multiple of dp · micro-batch"),
        (("--nodes", 10**400), "cluster: nodes must be from 1 to 1,000,000, not 1000"),
        (("--gpus-per-node", 10**9), "cluster: gpus_per_node must be from 1 to 1,024, not 1000"),
        (("--batch", 10**400), "batch must be from 1 to 1,000,000,000, not 1000"),
        (("--micro-batch", 10**9), "micro_batch must be from 1 to 4,096, not 1000"),
        (("--tp", 10**400), "GPUs do not divide the cluster's 8"),
        (("--zero", 4), "argument --zero: invalid choice: 4"),
        (
            ("--hidden", 64),
            "unrecognized arguments: --hidden 64. Did you mean --model FILE with hi",
        ),
        (("--peak-tflops", 9), "--peak-tflops 9. Did you mean --hardware FILE with peak_tflops?"),
        (("--precision", "fp8"), "precision fp8: a800-80gb has no such products"),
        (("--tp-overlap", 2), "tp_overlap must be a share from 0 to 1: 2.0"),
        (
            ("--precision", "fp8:0", "--hardware", "h100-80gb"),
            "argument --precision: must be faster by 1 to 4 times: 'fp8:0'",
        ),
        (("--stack", "eager", "--tp-overlap", "0.5"), "tp_overlap 0.5 contradicts stack eager"),
        (("--optimizer-shards", "3"), "optimizer_shards must divide the cluster's"),
        (
            ("--precision", "fp4"),
            "must be bf16, fp8, mxfp8, nvfp4, fp8:TIMES or mxfp8:TIMES: 'fp4'",
        ),
        (
            ("--pp", 8, "--virtual-stages", 5),
            "40 stages (pp · virtual stages) are more than the 32",
        ),
        (("--virtual-stages", 2), "virtual_stages 2: no scheme has pp above 1. Add one, or leave"),
        (("--tp-overlap", 0.5), "tp_overlap 0.5: no scheme has tp above 1. Add one, or leave"),
        (
            ("--tp", "1,2", "--context-parallel", "all-gather"),
            "context_parallel all-gather: no scheme has ring above 1. Add one, or leave",
        ),
        (("--dispatcher", "deepep"), "dispatcher deepep: requires expert_parallel above 1. "),
        (("--model", CONFIGS / "qwen3-next-80b.json", "--ring", 2), "no ring passes on the state"),
        (
            ("--recompute", "some"),
            "argument --recompute: unknown recomputation mode: some. Give one of none, ",
        ),
        (("--offload-parameters",), "offload_parameters: needs ZeRO 3 and offload_optimizer"),
        (("--tiled-mlp",), "tiled_mlp: recompute 'none' must be mlp or full"),
        (("--seq-len", 1, "--ring", 8), "sequences of 1 tokens are too short for 8 GPUs"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str | int | Path, ...], message: str) -> None:
    assert message in complaint(call(*NODE, *arguments))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"heads": 30}, "model: hidden 4096 is no multiple of 30 heads"),
        ({"hidden": 10**400}, "model: hidden must be from 1 to 10,000,000, not 1000"),
        ({"hidden": 0}, f"model.json: hidden {COUNT}: 0"),
        ({"layers": "32"}, f"model.json: layers {COUNT}: '32'"),
        ({"tied": 1}, "model.json: tied must be true or false: 1"),
        ({"kv_head": 8}, "model.json: unknown field: 'kv_head'. Did you mean kv_heads?"),
        ({"base": "llama-8b"}, "model.json: base must be a known model (small, llama-7b, "),
        ({"base": 8}, "or a config.json: 8"),
        ({"base": "none.json"}, "none.json: cannot be read: No such file or directory"),
    ],
)
def test_a_bad_file_of_sizes_is_one_line(
    tmp_path: Path, values: dict[str, object], message: str
) -> None:
    model = sizes(tmp_path, **{"base": "llama-7b", **values})
    assert message in complaint(call(*NODE, "--model", model))


@pytest.mark.parametrize(
    ("values", "message"),
    [
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
)
def test_a_bad_file_of_a_device_is_one_line(
    tmp_path: Path, values: dict[str, object], message: str
) -> None:
    hardware = device(tmp_path, **{"base": "a800-80gb", **values})
    line = complaint(call(*NODE, "--hardware", hardware))
    assert message in line
    assert line.count("device.json: ") <= 1


def test_files_that_are_no_objects_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "device.toml"
    assert "device.toml: cannot be read: No such file" in complaint(call(*NODE, "--hardware", path))
    path.write_text("base = ")
    assert "device.toml: not TOML (" in complaint(call(*NODE, "--hardware", path))
    path = tmp_path / "device.json"
    path.write_text("[1]")
    assert "device.json: must be an object of fields" in complaint(call(*NODE, "--hardware", path))
    assert "device.json: must be an object of fields" in complaint(call(*NODE, "--model", path))
