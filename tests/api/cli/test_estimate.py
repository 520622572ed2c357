"""``seqplan estimate`` and ``profile validate``, and planning on a derived profile."""

import functools
import json
from pathlib import Path
from typing import Any, cast

import pytest
from command_line import call, complaint, process, succeeded
from deployments import LLAMA3_8B_CONFIG
from estimate_files import CONFIGS, NODE, device, sizes

from seqplan.costs.analytic.memory import VERDICTS
from seqplan.costs.analytic.validation import held_out, tables
from seqplan.costs.profile import Profile


def test_one_scheme_with_its_terms() -> None:
    arguments = (*NODE, "--batch", 16, "--ulysses", 8)
    text = succeeded(process(*arguments))
    assert text.startswith("u8 × dp 1 on 1 × 8 a800-80gb, 16 micro-batches a replica\n")
    for part in (
        "matrix products",
        "attention",
        "ulysses",
        "\nfits: ",
        "MFU",
        "ms of sync, as seqplan's",
    ):
        assert part in text
    (estimate,) = json.loads(succeeded(call(*arguments, "--json")))["estimates"]
    assert estimate["scheme"] == {"tp": 1, "pp": 1, "ulysses": 8, "ring": 1}
    assert sum(estimate["terms_ms"].values()) == pytest.approx(estimate["iteration_ms"])
    assert abs(sum(estimate["memory_bytes"].values()) - estimate["peak_bytes"]) < 10
    assert estimate["fits"] is True
    assert estimate["tokens_per_s"] == pytest.approx(16 * 30720e3 / estimate["iteration_ms"])


def test_one_micro_batch_is_counted_as_one() -> None:
    text = succeeded(call(*NODE, "--batch", 1, "--ulysses", 8))
    assert text.startswith("u8 × dp 1 on 1 × 8 a800-80gb, 1 micro-batch a replica\n")


def test_lists_of_degrees_are_ranked_and_the_impossible_named() -> None:
    text = succeeded(call(*NODE, "--batch", 16, "--tp", "1,2", "--ulysses", "1,4", "--ring", "1,4"))
    lines = text.splitlines()
    order = [line.split()[0] for line in lines[2:8]]
    assert set(order) == {"tp2.u4", "tp2.r4", "tp1", "tp2", "u4", "r4"}
    verdicts = [
        next(verdict for verdict in ("does not fit", "tight", "fits") if f" {verdict} " in line)
        for line in lines[2:8]
    ]
    assert verdicts == sorted(verdicts, key=VERDICTS.index)
    assert set(verdicts) == set(VERDICTS)
    assert "left out (its 16 GPUs do not divide the cluster's 8): u4.r4" in text
    assert "left out (its 32 GPUs do not divide the cluster's 8): tp2.u4.r4" in text
    document = json.loads(
        succeeded(call(*NODE, "--batch", 16, "--tp", "2,4,8", "--ring", "1,2,16", "--json"))
    )
    times = [
        estimate["iteration_ms"]
        for estimate in document["estimates"]
        if estimate["verdict"] == "fits"
    ]
    assert len(times) >= 3
    assert times == sorted(times)
    assert document["rejected"]["tp4.r16"] == "its 64 GPUs do not divide the cluster's 8"


def test_names_have_any_case() -> None:
    named = ("--model", "Qwen3-8B", "--hardware", "H200", "--tp", 8, "--seq-len", 8192)
    assert "on 1 × 8 h200-141gb" in succeeded(call("estimate", *named))


def test_without_a_batch_it_is_the_fewest_sequences_that_all_schemes_run() -> None:
    text = succeeded(call(*NODE, "--tp", "2,4,8", "--ring", "1,16", "--micro-batch", 3))
    assert "batch: 12 sequences, the fewest that all schemes can run" in text
    assert "left out (its 64 GPUs do not divide the cluster's 8): tp4.r16" in text
    message = complaint(call(*NODE, "--batch", 3, "--tp", "1,2,4"))
    assert message.endswith("batch 3 is no multiple of dp · micro-batch = 8 · 1, and 2 others")


def test_a_scheme_that_does_not_fit_is_a_row_and_code_3() -> None:
    outcome = call(*NODE, "--batch", 8)
    assert (outcome.code, outcome.err) == (3, "")
    assert "\ndoes not fit: 170.8 of 76.0 GiB usable\n" in outcome.out
    assert "\nnone fits: tp1 needs least, 170.8 of 76.0 GiB usable; with " in outcome.out
    table = call(*NODE, "--batch", 8, "--tp", "1,2,8")
    assert table.code == 0
    rows = {line.split()[0]: line for line in table.out.splitlines()[2:]}
    assert " fits " in rows["tp8"]
    assert " does not fit " in rows["tp1"]
    assert "none fits" not in table.out
    (estimate,) = json.loads(call(*NODE, "--batch", 8, "--json").out)["estimates"]
    assert (estimate["fits"], estimate["verdict"]) == (False, "does not fit")
    assert estimate["peak_bytes"] > estimate["usable_bytes"] > 0


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ("--seq-len 100000", "with --ulysses 8 --recompute full it fits: 64.9 of 76"),
        ("--seq-len 100000 --ulysses 1,8 --recompute full", ""),
        ("--seq-len 2000000 --zero 3 --recompute full", "with --nodes 2 --ring 16 it fits: "),
        (
            "--seq-len 1000000000 --micro-batch 64",
            "nor does any --tp, --ulysses, --ring, --zero or --recompute",
        ),
    ],
)
def test_options_that_fit_are_named(options: str, hint: str) -> None:
    model = ("--model", "llama3-8b", "--hardware", "h100-80gb")
    text = call("estimate", *model, *options.split()).out
    assert hint in " ".join(text.split())
    assert ("none fits" in text) == bool(hint)


def test_figures_on_unchecked_efficiencies_say_so(tmp_path: Path) -> None:
    hopper = ("--model", "llama3-8b", "--hardware", "h200-141gb")
    arguments = ("estimate", *hopper, "--seq-len", 8192)
    text = succeeded(call(*arguments, "--tp", 8))
    assert "unchecked: that h200-141gb reaches 66 % of its peak in products and 42 % in" in text
    header, _, *rows = succeeded(call(*arguments, "--batch", 2, "--tp", "4,8")).splitlines()
    assert " efficiencies " in header
    assert [" unchecked " in row for row in rows[:2]] == [True, True]
    document = json.loads(succeeded(call(*arguments, "--tp", 8, "--json")))
    assert document["hardware"] == "h200-141gb"
    assert document["unchecked"].startswith("unchecked: that h200-141gb reaches 66 % of its peak")
    output = tmp_path / "p.json"
    profile = ("profile", "derive", *hopper, "--schemes", "tp8", "-o", output)
    assert "note: unchecked: that h200-141gb reaches" in succeeded(call(*profile))
    assert json.loads(output.read_text())["notes"] == [document["unchecked"]]
    shown = succeeded(call("profile", "show", output, "--gpus", 8))
    assert "; efficiencies of h200-141gb unchecked" in shown
    assert json.loads(succeeded(call(*profile, "--json")))["notes"] == [document["unchecked"]]
    # Ampere's efficiencies are those of sources; a given kernel or number is not.
    ampere = (*NODE, "--batch", 8, "--tp", 8)
    assert "unchecked" not in succeeded(call(*ampere))
    assert json.loads(succeeded(call(*ampere, "--json")))["unchecked"] is None
    older = device(tmp_path, base="a800-80gb", attention_kernel="fa1")
    assert "45 % in attention (fa1) is assumed" in " ".join(
        succeeded(call(*ampere, "--hardware", older)).split()
    )
    slow = device(tmp_path, base="a800-80gb", peak_tflops=200, matmul_efficiency=0.5)
    printed = succeeded(call(*ampere, "--hardware", slow))
    assert "reaches 50 % of its peak" in printed
    assert "as given: peak tflops 200, matmul efficiency 0.5" in " ".join(printed.split())
    larger = device(tmp_path, base="gb200-186gb", gpus_per_node=72)
    of_72 = (*NODE, "--batch", 9, "--tp", 8, "--hardware", larger)
    printed = " ".join(succeeded(call(*of_72)).split())
    assert "64 count as one node by default" in printed
    assert "as given: gpus per node 72" in printed


def read_estimate(*arguments: str | int | Path, code: int = 0) -> dict[str, Any]:
    """The only estimate of the command with these arguments, as JSON."""
    outcome = call(*arguments, "--json")
    assert (outcome.code, outcome.err) == (code, "")
    (estimate,) = json.loads(outcome.out)["estimates"]
    return cast("dict[str, Any]", estimate)


def estimated(*more: str | int | Path) -> dict[str, float]:
    """Terms, and the iteration's time and bytes, of tp2.pp2 on two nodes of H100."""
    arguments = ("estimate", "--model", "llama3-8b", "--hardware", "h100-80gb", "--nodes", 2)
    load = ("--seq-len", 8192, "--batch", 16, "--tp", 2, "--pp", 2, "--ring", 2)
    estimate = read_estimate(*arguments, *load, *more)
    whole = {"iteration": estimate["iteration_ms"], "bytes": estimate["peak_bytes"]}
    return {**estimate["terms_ms"], **whole}


def test_how_it_is_trained_decides(tmp_path: Path) -> None:
    usual = estimated()
    fp8 = estimated("--precision", "fp8")
    assert fp8["matrix products"] < 0.62 * usual["matrix products"]
    assert fp8["attention"] == usual["attention"]
    slow = estimated("--precision", "fp8:1.3")
    assert fp8["matrix products"] < slow["matrix products"] < usual["matrix products"]
    assert estimated("--virtual-stages", 4)["pipeline bubble"] == usual["pipeline bubble"] / 4
    assert estimated("--tp-overlap", 0.5)["tp communication"] == usual["tp communication"] / 2
    assert 0 < estimated("--sync", "hidden")["parameter sync"] < 0.5 * usual["parameter sync"]
    gathered = estimated("--context-parallel", "all-gather")
    assert "ring merge" in usual
    assert "ring merge" not in gathered
    rails = device(tmp_path, base="h100-80gb", inter_rails=8)
    synced = estimated("--pp", 1, "--hardware", rails)["parameter sync"]
    assert synced < 0.5 * estimated("--pp", 1)["parameter sync"]
    newer = device(tmp_path, base="h100-80gb", attention_kernel="fa3")
    assert estimated("--hardware", newer)["attention"] < 0.7 * usual["attention"]
    assert estimated("--gradient-bytes", 2)["bytes"] < usual["bytes"]
    assert estimated("--no-sequence-parallel")["bytes"] > usual["bytes"]
    assert estimated("--recompute", "elementwise")["bytes"] < usual["bytes"]
    whole, fused = estimated("--loss", "whole"), estimated("--loss", "fused")
    assert fused["head and loss"] < whole["head and loss"] < usual["head and loss"]
    at_once, in_chunks = (estimated("--pp", 1, "--loss", loss) for loss in ("whole", "chunked"))
    assert in_chunks["bytes"] < at_once["bytes"]
    slow = device(tmp_path, base="h100-80gb", hbm_gb_s=1000)
    assert estimated("--hardware", slow)["memory-bound"] > 3 * usual["memory-bound"]


def test_links_decide(tmp_path: Path) -> None:
    """A slower link between nodes makes the iteration longer; one within a node does not matter."""

    def ms(**links: float) -> float:
        hardware = device(tmp_path, base="a800-80gb", **links)
        arguments = (*NODE, "--nodes", 2, "--ulysses", 8, "--ring", 2, "--zero", 2)
        return float(read_estimate(*arguments, "--hardware", hardware)["iteration_ms"])

    assert ms(inter_gb_s=1) > 1.2 * ms() > ms()
    assert ms(intra_gb_s=20) > 1.05 * ms()


def test_a_config_file_and_single_sizes(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA3_8B_CONFIG))
    rest = ("--hardware", "h100-80gb", "--seq-len", 8192, "--tp", 8, "--json")
    named = succeeded(call("estimate", "--model", "llama3-8b", *rest))
    assert succeeded(call("estimate", "--model", config, *rest)) == named
    assert succeeded(call("estimate", "--model", tmp_path, *rest)) == named
    model = ("profile", "derive", "--schemes", "tp8", "--hardware", "h100-80gb", "--model")
    for source in (config, tmp_path):
        succeeded(call(*model, source, "-o", tmp_path / "profile.json"))
        name = json.loads((tmp_path / "profile.json").read_text())["name"]
        assert name == f"{tmp_path.name}-h100-80gb-estimate"
    for precision, error in (("bf16", 0.04), ("fp8", None)):
        succeeded(call(*model, source, "--precision", precision, "-o", tmp_path / "profile.json"))
        assert Profile.load(tmp_path / "profile.json").device_error == error

    def changed(base: str, **values: int) -> str:
        model = sizes(tmp_path, base=base, **values)
        return succeeded(call("estimate", "--model", model, *rest))

    assert changed("config.json", layers=16) != named
    assert changed("config.json", head_dim=128) == named
    assert changed("llama3-8b", head_dim=128) == named
    assert changed("config.json", head_dim=256) != named
    assert changed("config.json", tied=True) != named
    qwen = str(CONFIGS / "qwen3-4b.json")
    whole = succeeded(call("estimate", "--model", qwen, *rest))
    assert changed(qwen, tied=True, head_dim=128) == whole
    assert changed(qwen, tied=False) != whole
    by_name = {"hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336}
    model = tmp_path / "model.toml"
    model.write_text("".join(f"{size} = {value}\n" for size, value in by_name.items()))
    assert "model.toml: lacks vocab. Add" in complaint(call("estimate", "--model", model, *rest))
    model.write_text(model.read_text() + "vocab = 128256\n")
    assert succeeded(call("estimate", "--model", model, *rest)) == named


def test_figures_of_layers_that_nobody_checked_say_so() -> None:
    rest = ("--hardware", "h100-80gb", "--nodes", 4, "--seq-len", 8192, "--batch", 4, "--tp", 8)
    text = " ".join(call("estimate", "--model", CONFIGS / "gpt-oss-120b.json", *rest).out.split())
    assert "unchecked: experts. Every rank of tp holds its part of all of them" in text
    assert "unchecked: attention within windows or chunks" in text
    arguments = ("estimate", "--model", CONFIGS / "qwen3-next-80b.json", *rest, "--json")
    document = json.loads(call(*arguments).out)
    assert "linear attention is taken to reach a quarter" in document["unchecked"]
    assert document["estimates"][0]["terms_ms"]["linear attention"] > 0


def test_the_nodes_of_a_file_are_the_default(tmp_path: Path) -> None:
    hardware = device(tmp_path, base="a800-80gb", gpus_per_node=4)
    rest = ("--tp", 4, "--json")
    small = succeeded(call(*NODE, *rest, "--gpus-per-node", 4))
    assert succeeded(call(*NODE, *rest, "--hardware", hardware)) == small


def test_the_model_is_compared_with_published_results(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((tables, "checks"), (held_out, "leave_sources_out")):
        monkeypatch.setattr(module, name, functools.cache(getattr(module, name)))  # printed thrice
    text = succeeded(call("profile", "validate"))
    for name in ("USP table 3", "USP table 4", "USP table 5", "llama-32b-a800-80gb: MaxLen"):
        assert name in text
    assert "BRIDGE_FLOWS" in text
    rows = succeeded(call("profile", "validate", "--rows"))
    assert set(text.splitlines()) < set(rows.splitlines())
    printed = json.loads(succeeded(call("profile", "validate", "--json")))
    assert len(printed) == 31
    runs = 61 + 52 + 7 + 25 + 53 + 39 + 27 + 2
    assert sum(len(table["rows"]) for table in printed) == 191 + 16 + runs + 199 + 23 + 84
    assert "Rows that have set no constant" in text
    assert "assumed: no recomputation" in " ".join(text.split())
    judging = [row["judges"] for table in printed for row in table["rows"]]
    assert judging.count(True) > 100 < judging.count(False)
    assert all(row["predicted"] > 0 for table in printed for row in table["rows"])


def test_planning_accepts_a_derived_profile(tmp_path: Path, lengths: Path) -> None:
    profile = tmp_path / "derived.json"
    model = ("--model", "llama3-8b", "--hardware", "h100-80gb", "--nodes", 2, "--name", "derived")
    schemes = ("--schemes", "tp2,tp4,tp8,u4.r2,tp2.u4,tp2.pp2")
    succeeded(call("profile", "derive", *model, *schemes, "-o", profile))
    proposal, plans = tmp_path / "proposal.json", tmp_path / "plans.jsonl"
    common = ("--profile", profile, "--gpus", 16, lengths, "--max-len", 16384)
    succeeded(call("propose", *common, "--tokens", 60000, "-o", proposal))
    succeeded(call("plan", "--proposal", proposal, lengths, "--steps", 2, "-o", plans))
    succeeded(call("check", "plans", plans, "--profile", profile))
    steps = [json.loads(line) for line in plans.read_text().splitlines()]
    assert [step["step"] for step in steps] == [0, 1]
    assert all(step["predicted_ms"] > 0 for step in steps)
    few = ("--tokens", 60000, "--steps", 1, "--systems", "megatron", "--json")
    assert json.loads(succeeded(call("compare", *common, *few)))
    assert "derived" in succeeded(call("profile", "show", profile, "--gpus", 16))


def test_layers_in_host_memory_leave_the_device_and_are_limited(tmp_path: Path) -> None:
    arguments = (
        *("estimate", "--model", "llama3-8b", "--hardware", tmp_path / "device.json", "--tp", 2),
        *("--seq-len", 32768, "--batch", 4, "--recompute"),
    )
    device(tmp_path, base="h100-80gb", host_memory_gb=100)
    kept, half, whole = (read_estimate(*arguments, mode) for mode in ("mlp", "mlp+0.5", "mlp+1"))
    assert kept["host_bytes"] == 0
    assert whole["host_bytes"] == 2 * half["host_bytes"] > 0
    assert kept["peak_bytes"] > half["peak_bytes"] > whole["peak_bytes"]
    assert kept["iteration_ms"] <= half["iteration_ms"] <= whole["iteration_ms"]
    device(tmp_path, base="h100-80gb", host_memory_gb=1)
    assert read_estimate(*arguments, "mlp+1", code=3)["verdict"] == "does not fit"
    device(tmp_path, base="h100-80gb")
    rejected = call(*arguments, "mlp+1")
    assert (rejected.code, rejected.out) == (2, "")
    assert "State host_memory_gb in a device file, or leave the mode out" in rejected.err


def test_the_stack_is_stated_with_its_figures(tmp_path: Path) -> None:
    model = ("--model", "llama3-8b", "--hardware", "h100-80gb", "--gradient-bytes", 2)
    derived = ("profile", "derive", *model, "--schemes", "tp8,tp8.r2", "--nodes", 2)
    c = {}
    for stack in ("compiled", "eager"):
        output = tmp_path / f"{stack}.json"
        text = succeeded(call(*derived, "--stack", stack, "-o", output))
        assert ("unchecked: stack eager" in text) == (stack == "eager")
        profile = json.loads(output.read_text())
        assert ("stack eager" in profile["source"]) == (stack == "eager")
        c[stack] = [scheme["modes"]["none"]["c"] for scheme in profile["schemes"]]
    grown = [ring - alone for alone, ring in (c["compiled"], c["eager"])]
    assert grown[1] > 10 * max(grown[0], 1)  # ms by a further rank of the ring


def test_the_optimizer_is_in_host_memory_by_an_option(tmp_path: Path) -> None:
    big = device(tmp_path, base="h100-80gb", host_memory_gb=200)
    arguments = ("estimate", "--model", "llama3-8b", "--hardware", big, "--seq-len", 8192)
    load = ("--batch", 8, "--zero", 3, "--recompute", "full")
    on_device = read_estimate(*arguments, *load)
    on_host = read_estimate(*arguments, *load, "--offload-optimizer")
    parameters = 8_030_261_248
    moved = on_device["peak_bytes"] - on_host["peak_bytes"]
    assert moved == pytest.approx(12 * parameters / 8, rel=1e-3)
    assert on_host["host_bytes"] == pytest.approx(moved, rel=1e-6)
    # Gradients and parameters over 55 GB/s, and 30 bytes a parameter at 25 GB/s.
    shard = parameters / 8
    assert on_host["terms_ms"]["optimizer"] == pytest.approx(
        shard * 6 / 55e6 + shard * 30 / 25e6, rel=1e-3
    )
    plain = ("estimate", "--model", "llama3-8b", "--hardware", "h100-80gb", "--seq-len", 8192)
    assert "host memory of offload_optimizer: 0 bytes a GPU" in complaint(
        call(*plain, "--offload-optimizer")
    )


def test_parameters_on_the_host_and_tiles_leave_memory_for_tokens(tmp_path: Path) -> None:
    big = device(tmp_path, base="h100-80gb", host_memory_gb=200)
    load = ("--seq-len", 262144, "--batch", 1, "--zero", 3, "--recompute", "full", "--ulysses", 8)
    arguments = ("estimate", "--model", "llama3-8b", "--hardware", big, *load)
    without, parameters, tiles = (
        read_estimate(*arguments, "--offload-optimizer", *more)
        for more in ((), ("--offload-parameters",), ("--tiled-mlp",))
    )
    states = 8_030_261_248 / 8 * (2 + 4)
    assert without["peak_bytes"] - parameters["peak_bytes"] == pytest.approx(states, rel=1e-3)
    assert parameters["terms_ms"]["optimizer"] > without["terms_ms"]["optimizer"]
    # Gate, up, their product and the normed input of 32,768 tokens, but for a tile's.
    rows = 262144 / 8 * (4096 * 2 + 3 * 14336 * 2)
    tile = 2 * 7 * 4096 * 14336
    assert without["peak_bytes"] - tiles["peak_bytes"] == pytest.approx(rows - tile, rel=0.01)
    assert "host_bytes" in parameters
