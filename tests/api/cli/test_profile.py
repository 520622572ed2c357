"""``seqplan profile measure`` and ``merge`` in this process, and on ranks under torchrun."""

import json
from pathlib import Path

import pytest
from command_line import Outcome, call, complaint, succeeded
from comparisons import charts
from trainers import launched

from seqplan import Profile, Scheme
from seqplan.costs.fit.sample_file import read_syncs
from seqplan.planner.sync.choice import choose_sync
from seqplan.profiler.measure.design import design

TINY = {"hidden": 32, "layers": 4, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 50}
PATIENCE_S = 60.0
FIELDS = {"a", "b", "c", "origin", "fit"}
"""Of a scheme all of whose degrees are 1."""


def write_model(folder: Path, **changes: object) -> Path:
    """A file of ``TINY`` sizes with these changes, in a folder next to ``folder``."""
    path = folder.with_name(f"{folder.name}-models") / "tiny.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**TINY, **changes}))
    return path


def profiled(folder: Path, *arguments: str | Path | int, **changes: object) -> Outcome:
    """Run ``profile measure`` with the model of ``TINY`` sizes with these changes."""
    return call("profile", "measure", "--model", write_model(folder, **changes), *arguments)


def test_one_rank_measures_fits_and_goes_on_from_its_samples(tmp_path: Path) -> None:
    output = tmp_path / "p.json"
    options = ("--lengths", "8..256", "--points", "4", "-o", str(output), "--schemes", "u1,u2,pp3")
    options += ("--repeats", "3", "--even-if-busy")
    completed = profiled(tmp_path, *options)
    assert "bytes a token" in succeeded(completed)
    assert "u2 needs 2 ranks, there are 1: left out" in completed.err
    assert "pp3: pp = 3 does not divide the 4 layers: left out" in completed.err
    profile = Profile.load(output)
    assert [entry.scheme for entry in profile.schemes] == [Scheme()]
    assert profile.schemes[0].origin == "measured"
    # Memory is counted, not timed: linear but for alignment.
    fit = profile.schemes[0].fit
    roles = [point.role for point in design(8, 256, points=4)]
    assert fit["in_sample"]["samples"] == roles.count("fit")
    assert fit["device_spread"] >= 0
    samples = output.with_suffix(".samples.jsonl")
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:-2]))
    succeeded(profiled(tmp_path, *options))
    again = samples.read_text().splitlines(keepends=True)
    assert len(again) == len(lines)
    assert again[:-2] == lines[:-2]  # old samples are kept, not measured anew


def test_wide_heads_and_tied_embeddings_are_measured_and_kept(tmp_path: Path) -> None:
    output, again = tmp_path / "p.json", tmp_path / "again.json"
    options = ("--lengths", "8..64", "--points", "4", "--repeats", "1", "--measured-layers", "1")
    options += ("--even-if-busy",)
    succeeded(profiled(tmp_path, *options, "-o", str(output), head_dim=16, tied=True))
    profile = Profile.load(output)
    assert (profile.shape.head_dim, profile.shape.tied) == (16, True)
    samples = str(output.with_suffix(".samples.jsonl"))
    succeeded(call("profile", "merge", samples, "--capacity-gib", 8, "-o", again))
    assert json.loads(again.read_text())["model"] == json.loads(output.read_text())["model"]
    other = profiled(tmp_path, *options, "--samples", samples, "-o", str(tmp_path / "other.json"))
    assert other.code == 2
    assert "head_dim 16, tied True, not hidden 32" in other.err
    assert json.loads(output.read_text())["kernel"] == "cpu"
    for kernel, message in {
        "blocks": "measured with kernel cpu, not blocks; samples of different settings do not",
        "fa2": "kernel 'fa2' does not support this attention: the device is cpu. Choose another",
        "fa5": "kernel 'fa5': unknown. Did you mean fa4?",
    }.items():
        options = (*options, "--samples", samples, "-o", str(tmp_path / "other.json"))
        joined = profiled(tmp_path, *options, "--kernel", kernel, head_dim=16, tied=True)
        assert message in complaint(joined)


def test_a_busy_machine_fails_and_makes_no_profile(tmp_path: Path) -> None:
    """Its samples stay, and can be fitted as they are."""
    output, samples = tmp_path / "p.json", tmp_path / "s.jsonl"
    options = ("--lengths", "8..64", "--points", "4", "--repeats", "1", "--measured-layers", "1")
    options += ("--samples", str(samples), "-o", str(output))
    succeeded(profiled(tmp_path, *options, "--even-if-busy"))
    output.unlink()
    header, *lines = samples.read_text().splitlines()
    measured = [json.loads(line) for line in lines]
    assert all(len(sample["layers_cpu_ms"]) == len(sample["layers_ms"]) for sample in measured)
    for index, sample in enumerate(measured):
        for name in ("layers_yardstick_ms", "ends_yardstick_ms"):
            sample[name] = [0.2 if index % 3 else 20.0] * len(sample[name])
    samples.write_text("\n".join([header, *map(json.dumps, measured)]) + "\n")
    noisy = samples.read_bytes()
    completed = profiled(tmp_path, *options)
    assert (completed.code, output.exists(), samples.read_bytes()) == (1, False, noisy)
    message = "the machine was too busy: a fixed piece of work usually took 0.2 ms, and 100.0 times"
    assert message in completed.err
    assert (
        f"no profile is written. {samples} has the samples: delete it and measure" in completed.err
    )
    merged = call("profile", "merge", samples, "--capacity-gib", 8, "-o", output)
    succeeded(merged)
    assert message in merged.err
    succeeded(profiled(tmp_path, *options, "--even-if-busy"))
    assert Profile.load(output).schemes[0].fit


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A profile of all kinds of schemes, and the messages while it was measured."""
    output = tmp_path_factory.mktemp("ranks") / "p.json"
    page = output.with_name("fit.html")
    options = ("--lengths", "64..256", "--points", "4", "-o", str(output), "--plot", str(page))
    options += ("--repeats", "1", "--measured-layers", "1", "--even-if-busy")
    schemes_asked = ("--schemes", "tp1,pp2.r2,tp2.u2,tp3,pp3,tp8")
    command = ["profile", "measure", "--model", str(write_model(output.parent))]
    ranks = launched(4, "seqplan.api.cli", [*command, *options, *schemes_asked])
    try:
        printed = "".join(rank.output.read() for rank in ranks)
        for rank in ranks:
            rank.process.join(PATIENCE_S)
        assert [rank.process.exitcode for rank in ranks] == [0] * 4, printed
    finally:
        for rank in ranks:
            rank.end()
    return output, printed


def test_ranks_measure_every_axis(four_ranks: tuple[Path, str]) -> None:
    output, printed = four_ranks
    profile = Profile.load(output)
    wanted = ["tp1", "pp2.r2", "tp2.u2"]
    assert [str(entry.scheme) for entry in profile.schemes] == wanted
    assert {entry.origin for entry in profile.schemes} == {"measured"}
    # What a rank keeps is counted, and linear over lengths, packings and schemes of one tp.
    document = json.loads(output.read_text())
    assert set(document["memory"]["activation_bytes_per_token"]) == {"1", "2"}
    assert float(document["residuals"].rpartition("memory ")[2].partition("%")[0]) < 3.0
    for line in (
        "tp3: tp·ulysses = 3 does not divide the 4 attention heads: left out",
        "pp3: pp = 3 does not divide the 4 layers: left out",
        "tp8: tp·ulysses = 8 does not divide the 4 attention heads: left out",
    ):
        assert printed.count(line) == 1


def test_ranks_measure_the_sync(four_ranks: tuple[Path, str]) -> None:
    """Of every layout that there was, with one layer of a stage and with two."""
    output, printed = four_ranks
    profile = Profile.load(output)
    layouts = [(1, 1), (1, 2), (2, 1)]
    assert [(entry.tp, entry.pp) for entry in profile.sync] == layouts
    assert {entry.gpus for entry in profile.sync} == {4}
    measured = read_syncs(output.with_suffix(".samples.jsonl"))
    wanted = [(tp, pp, 4, layers) for tp, pp in layouts for layers in (1, 2)]
    assert [sync.key for sync in measured] == wanted
    sync = choose_sync(profile, 4)
    assert sync.source.startswith("measured on 4 GPUs for tp1, pp2, tp2; 0 % of it hidden")
    for entry in profile.sync:
        assert sync.whole_ms([(entry.tp, entry.pp)]) == entry.ms
        assert f"on 4 ranks {entry.ms:,.1f} ms, optimizer {entry.optimizer_ms:,.1f} ms" in printed


def test_every_measured_scheme_is_on_the_page(four_ranks: tuple[Path, str]) -> None:
    html = four_ranks[0].with_name("fit.html").read_text()
    for heading in ("Scheme tp1", "Scheme pp2.r2", "Scheme tp2.u2"):
        assert heading in html
    drawings = charts(html)
    assert [chart["up"]["label"] for chart in drawings] == ["ms", "residual"] * 3
    for chart in drawings:
        drawn = {
            series["look"]: sum(value is not None for value in series["values"])
            for series in chart["series"]
        }
        assert drawn["hollow"] + drawn["filled"] >= 3  # single lengths


def test_measurements_on_ranks_complete_a_profile(
    four_ranks: tuple[Path, str], tmp_path: Path
) -> None:
    """From its tp1 alone, the schemes that were measured too; measurements stay."""
    measured = json.loads(four_ranks[0].read_text())
    document = json.loads(four_ranks[0].read_text())
    document["schemes"] = [
        entry for entry in document["schemes"] if len(entry.keys() - FIELDS) == 0
    ]
    document["memory"]["activation_bytes_per_token"].pop("2")
    single, output = tmp_path / "single.json", tmp_path / "p.json"
    single.write_text(json.dumps(document))
    completed = call(
        *("profile", "derive", "--profile", single, "--model", write_model(tmp_path)),
        *("--hardware", "a100-80gb", "--nodes", 1, "--gpus-per-node", 4),
        *("--schemes", "u2,tp2,pp2,tp2.u2", "-o", output),
    )
    succeeded(completed)
    profile = Profile.load(output)
    assert {str(entry.scheme): entry.origin for entry in profile.schemes} == {
        "tp1": "measured",
        **dict.fromkeys(("u2", "pp2", "tp2", "tp2.u2"), "derived"),
    }
    bytes_per_token = profile.document["memory"]["activation_bytes_per_token"]
    was = measured["memory"]["activation_bytes_per_token"]
    assert bytes_per_token["1"] == was["1"]
    # Both are of trainers that split norms and residuals over tp.
    assert measured["tensor_parallel"] == "sequence-parallel"
    assert "notes" not in measured
    # Additions for tp2 are counted in bf16; measurements are in fp32, and of tp2.u2.
    assert bytes_per_token["2"] == pytest.approx(was["2"], rel=0.15)
    assert was["1"] < bytes_per_token["2"] < was["2"]


def test_schemes_of_which_none_can_be_measured(tmp_path: Path) -> None:
    outcome = profiled(tmp_path, "--schemes", "u3", "-o", tmp_path / "p.json")
    left_out, problem = outcome.err.splitlines()
    assert left_out == "u3: tp·ulysses = 3 does not divide the 4 attention heads: left out"
    assert (outcome.code, outcome.out) == (2, "")
    assert problem == "seqplan: --schemes u3: none can be measured"
    assert not (tmp_path / "p.json").exists()


def test_an_odd_head_is_rejected(tmp_path: Path) -> None:
    completed = profiled(tmp_path, "-o", str(tmp_path / "p.json"), head_dim=5)
    assert "head_dim must be even and at least 2, not 5" in complaint(completed)


def test_samples_of_several_modes_are_merged(tmp_path: Path) -> None:
    """Those of a second mode are made of measured ones: half as long again, of fewer bytes."""
    measured, merged = tmp_path / "p.json", tmp_path / "merged.json"
    options = ("--lengths", "8..256", "--points", "4", "--repeats", "3", "--even-if-busy")
    succeeded(profiled(tmp_path, *options, "-o", str(measured)))
    none = measured.with_suffix(".samples.jsonl")
    head, *lines = map(json.loads, none.read_text().splitlines())
    for line in lines:
        for name in ("layers_ms", "ends_ms", "forward_ms", "layers_cpu_ms"):
            line[name] = [1.5 * ms for ms in line[name]]
        line["layers_saved_bytes"] //= 4
    full = tmp_path / "full.jsonl"
    full.write_text("\n".join(map(json.dumps, [{**head, "recompute": "full"}, *lines])) + "\n")
    merge = ("profile", "merge", full, none, "--capacity-gib", 8, "-o", merged)
    assert "recomputation full:" in succeeded(call(*merge))
    profile, one = Profile.load(merged), Profile.load(measured)
    assert [mode.name for mode in profile.modes] == ["none", "full"]
    modes = profile.schemes[0].modes
    assert modes["none"] == one.schemes[0].latency
    longer = modes["full"].micro_batch_ms([200]) / modes["none"].micro_batch_ms([200])
    assert longer == pytest.approx(1.5, rel=0.01)
    more = [{**line, "scheme": {**line["scheme"], "ulysses": 2}} for line in lines]
    none.write_text("\n".join(map(json.dumps, [head, *lines, *more])) + "\n")
    note = "left out: u2, not measured in full"
    outcome = call(*merge)
    assert (outcome.code, outcome.err.count(note)) == (0, 1)
    assert Profile.load(merged).document["notes"] == [note]
    none.write_text("\n".join(map(json.dumps, [head, *more])) + "\n")
    lacking = "no scheme was measured in all of none, full. Measure one in each of them"
    assert lacking in complaint(call(*merge))
    full.write_text(full.read_text().replace('"float32"', '"float64"', 1))
    merged.unlink()
    assert "do not make one profile" in complaint(call(*merge))
    assert not merged.exists()


def test_modes_that_offload_are_derived_with_host_memory(tmp_path: Path) -> None:
    output = tmp_path / "p.json"
    device = tmp_path / "h100.toml"
    device.write_text('base = "h100-80gb"\nhost_memory_gb = 100\n')
    derive = ("profile", "derive", "--model", "llama3-8b", "-o", output, "--hardware")
    schemes = ("--schemes", "u1,u8")
    completed = call(*derive, device, *schemes)
    succeeded(completed)
    assert "unchecked: offload at 55 GB/s each way" in completed.out
    profile = Profile.load(output)
    assert [mode.name for mode in profile.modes if mode.host] == [
        "elementwise+0.5",
        "elementwise+1",
    ]
    assert profile.memory.host_memory_bytes == 100e9
    shown = call("profile", "show", output, "--gpus", 8)
    succeeded(shown)
    assert "elementwise+0.5" in shown.out
    output.unlink()
    bad = tmp_path / "bad.toml"
    bad.write_text('base = "h100-80gb"\nhost_memory_gb = 0\n')
    for hardware, modes, message in (
        ("h100", "full+0.5", "host memory of mode full+0.5: 0 bytes a GPU. State host_memory_gb"),
        (device, "full+2", "layers offloaded by mode full+2: 2. Give"),
        (bad, "full", "host_memory_gb must be from 0.001 to 1,000,000: 0"),
    ):
        rejected = call(*derive, hardware, *schemes, "--recompute", modes)
        assert rejected.code == 2
        assert message in rejected.err
        assert not output.exists()
    for modes, options, message in (
        (
            "none,none+1",
            (),
            "recomputation none+1: offloads 100 % of the layers, and no host memory",
        ),
        ("none,none+0.3", ("--host-memory-gib", 1), "--recompute none+0.3: 0.6 of 2 measured"),
    ):
        measured = call(
            *("profile", "measure", "--model", "small", "--recompute", modes),
            *("-o", output, *options),
        )
        assert measured.code == 2
        assert message in measured.err
        assert not output.exists()


def test_modes_that_offload_are_measured(tmp_path: Path) -> None:
    output = tmp_path / "p.json"
    completed = profiled(
        *(tmp_path, "--recompute", "none,none+0.5", "--lengths", "32..128", "--points", 4),
        *("--repeats", 1, "--host-memory-gib", 2, "--even-if-busy", "-o", output),
    )
    succeeded(completed)
    profile = Profile.load(output)
    none, half = profile.modes
    assert [mode.name for mode in profile.modes] == ["none", "none+0.5"]
    # Half of the layers keep their activations in host memory, and two come back at a time.
    assert none.kept[1] / 2 < half.kept[1] < none.kept[1]
    assert none.kept[1] / 4 < half.host[1] < none.kept[1] / 2
    assert profile.memory.host_memory_bytes == 2 * 2**30
    assert "host memory: " in completed.out
    # Of the samples alone the same memory follows, if the host's is stated.
    samples = sorted(tmp_path.glob("*.samples.jsonl"))
    merge = ("profile", "merge", *samples, "--capacity-gib", 2, "-o", tmp_path / "merged.json")
    message = "recomputation none+0.5: offloads 50 % of the layers, and no host memory is stated. "
    assert complaint(call(*merge)) == f"{message}Add --host-memory-gib"
    succeeded(call(*merge, "--host-memory-gib", 2))
    merged = Profile.load(tmp_path / "merged.json")
    assert merged.modes == profile.modes
    assert merged.memory.host_memory_bytes == 2 * 2**30
