"""Bad input: one line with problem and place, the right exit code, and no file left behind."""

import copy
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, complaint, nothing_left
from estimate_files import CONFIGS, sizes
from planned_files import PlannedFiles, propose

from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.comparison.compare import SYSTEMS

LLAMA, LARGE = "--profile llama-7b-a800-80gb", "--profile llama-32b-a800-80gb"
MEASURED = "--profile llama-7b-a800-80gb --hardware a800-80gb"
PROPOSE = "propose --profile gpt-7b-a100-40gb --gpus 8 {lengths} --max-len 4096 -o {output}"
COMPARE = f"compare {LLAMA} --gpus 4 {{lengths}} --max-len 16384 --tokens 20000 --steps 2"
EXPERTS = [
    ("--expert-parallel 3", "expert_parallel = 3 does not divide the 128 experts"),
    ("--expert-parallel 8 --expert-imbalance 0.5", "from 1 to 1000: 0.5"),
    ("--dispatcher mpi", "dispatcher must be one of nccl, deepep, hybridep, not 'mpi'"),
]
BAD = {
    "": [
        ("", "the following arguments are required: COMMAND … --help)"),
        ("replan", "unknown command: 'replan'. Did you mean plan? … --help)"),
        ("refit -o p.json", "unknown command: 'refit'. Did you mean profile refit?"),
        ("report", "unknown command: 'report'. Did you mean plan -o FOLDER/ or compare -o FILE?"),
        ("zzz", "unknown command: 'zzz' (see seqplan --help)"),
        ("proposee", "Did you mean propose?"),
        ("profile", "seqplan profile: the following arguments are required: COMMAND … --help)"),
        ("profile shwo", "seqplan profile: unknown command: 'shwo'. Did you mean show? … --help)"),
        ("check run.jsonl", "check: unknown command: 'run.jsonl'. Commands: plans, training (see"),
        ("check plans p --profile a --proposal b", "argument --proposal: not allowed … --help)"),
        ("check plans p --strict", "unrecognized arguments: --strict (see seqplan check"),
        ("check plans plans.jsonl --profil-e=x", "Did you mean --profile?"),
        ("explain p --step -2", "argument --step: must be an integer of 0 or more"),
        ("profile show gpt-7b-a100-40gb --gpus 8 --optimizer-shards 9", "must be at most --gpus 8"),
    ],
    "plan": [
        ("", "the following arguments are required: DATA. For example: seqplan plan chat"),
        ("l --proposal p -o -", "argument -o/--output: '-' is no file. Name one, or /dev/stdout"),
        ("l --workers ray:0", "argument --workers: must be W or ray:W, W of 1 or more: '"),
        ("l --workers 99999", "argument --workers: must be 1024 or fewer: '99999'"),
        ("l --tokens abc", "argument --tokens: must be an integer of 1 or more: 'abc' … --help)"),
        ("l --steps -1", "argument --steps: must be an integer of 1 or more: '-1'"),
        ("l --seed 1.5", "argument --seed: must be an integer of 0 or more: '1.5'"),
        ("--stepp 3", "unrecognized arguments: --stepp. Did you mean --step"),
        ("l --propsal=p", "Did you mean --proposal?"),
        ("l --prop p", "unrecognized arguments: --prop"),
        ("--data l.npy", "--data. Leave --data out, and give its value alone"),
        ("--dataset l.npy", "--dataset. Leave --dataset out, and give its value alone"),
        ("l.npy --model qwen3-8b --device h100-80gb", "Did you mean --hardware?"),
        ("l.npy --model qwen3-8b --context 8192", "Did you mean --max-len?"),
        ("l.npy --model qwen3-8b -o ''", "the argument after -o is empty. State it, or check the "),
    ],
    "plan {lengths}": [
        ("--model llama3-8b --gpus 8", "--model and --hardware go together"),
        ("--hardware h100 --model llama3-8b", "--gpus is required without --proposal"),
        ("--model llama3-8b --hardware a100 --gpus 8", "Did you mean a100-40gb or a100-80gb?"),
        ("--model llama3-8b --hardware h10 --gpus 8", "Did you mean h100"),
        ("--model llama3-9b --hardware h100 --gpus 8", "Did you mean llama3-8b"),
    ],
    "plan {lengths} --model llama3-8b --hardware h100 --gpus 8": [
        ("--tokenizer nowhere", "--tokenizer nowhere: no such file or folder"),
        ("--tokenizer 0", "--tokenizer 0: bytes per token must be"),
        ("--tokens 1000000000", "fewer than a step of 1000000000"),
        ("--trainer megatron --execution static", "megatron runs lockstep"),
        ("--slowdown 9=lost", "slowdown of rank 9: ranks are 0 to 7. Name one"),
    ],
    "plan {lengths} --proposal {dense.proposal} -o {output} --slowdown": [
        ("3", "must be rank=factor,…, as 13=1.3,20=lost: '3'"),
        ("9=1.5", "slowdown of rank 9: ranks are 0 to 3. Name one"),
    ],
    "log": [
        ("", "one of the arguments --server --store --plans is required"),
        ("--store none.db", "none.db: no such store. Name the file that serve --store has"),
        ("--store none.db --after 1", "--after is for the steps of a job. Give --job"),
        ("--store postgresql+psycopg://host/db", "must be a SQLite store. Give --server URL"),
        ("--server http://127.0.0.1:9", "no answer: "),
        ("--server x", "--server must be http://HOST:PORT: 'x'"),
        ("--store s --after -1 --job j", "argument --after: "),
        ("plans.jsonl --json", "arguments: plans.jsonl. Did you mean --plans plans.jsonl?"),
        ("--url http://127.0.0.1:9", "Did you mean --server?"),
    ],
    "lengths": [("''", "the argument after lengths is empty. State it, or check the variable of ")],
    "serve": [
        ("--store=", "the argument of --store is empty. State it, or check the variable of ")
    ],
    "estimate": [
        ("", "--model, --hardware, --seq-len. For example: seqplan estimate --model llama3-8b --h"),
        ("qwen3-8b", "unrecognized arguments: qwen3-8b. Did you mean --model qwen3-8b?"),
    ],
    "estimate --model llama-7b --hardware a800-80gb --seq-len 30720": [
        ("--hardware b20", "--hardware 'b20': unknown. Did you mean b200-180gb? There"),
        ("--model llama-8b", "file of sizes (.json, .toml). Did you mean llama3-8b? Or give"),
        ("--tp 1,x", "argument --tp: must be an integer of 1 or more: 'x'"),
        ("--tp 3", "no scheme can run: tp3: its 3 GPUs do not divide the cluster's 8"),
        ("--batch 7", "no scheme can run: tp1: batch 7 is no multiple of dp · micro-batch"),
        ("--nodes {huge}", "cluster: nodes must be from 1 to 1,000,000, not 1000"),
        ("--gpus-per-node 1000000000", "cluster: gpus_per_node must be from 1 to 1,024, not 1000"),
        ("--batch {huge}", "batch must be from 1 to 1,000,000,000, not 1000"),
        ("--micro-batch 1000000000", "micro_batch must be from 1 to 4,096, not 1000"),
        ("--tp {huge}", "GPUs do not divide the cluster's 8"),
        ("--zero 4", "argument --zero: invalid choice: 4"),
        ("--hidden 64", "unrecognized arguments: --hidden 64. Did you mean --model FILE with hi"),
        ("--peak-tflops 9", "--peak-tflops 9. Did you mean --hardware FILE with peak_tflops?"),
        ("--precision fp8", "precision fp8: a800-80gb has no such products"),
        ("--tp-overlap 2", "tp_overlap must be a share from 0 to 1: 2.0"),
        ("--precision fp8:0 --hardware h100-80gb", "must be faster by 1 to 4 times: 'fp8:0'"),
        ("--stack eager --tp-overlap 0.5", "tp_overlap 0.5 contradicts stack eager"),
        ("--optimizer-shards 3", "optimizer_shards must divide the cluster's"),
        ("--precision fp4", "must be bf16, fp8, mxfp8, nvfp4, fp8:TIMES or mxfp8:TIMES: 'fp4'"),
        ("--pp 8 --virtual-stages 5", "40 stages (pp · virtual stages) are more than the 32"),
        ("--virtual-stages 2", "--virtual-stages: no scheme has pp above 1. Add one, or leave"),
        ("--tp-overlap 0.5", "--tp-overlap: no scheme has tp above 1. Add one, or leave"),
        ("--no-sequence-parallel", "--no-sequence-parallel: no scheme has tp above 1. Add one"),
        ("--zero 3 --sync hidden", "--sync hidden: ZeRO 3 has no separate sync. Leave"),
        ("--tp 1,2 --context-parallel all-gather", "no scheme has ring above 1. Add one, or leave"),
        ("--dispatcher deepep", "dispatcher deepep: requires expert_parallel above 1. "),
        ("--model {configs}/qwen3-next-80b.json --ring 2", "no ring passes on the state"),
        ("--recompute some", "--recompute: unknown recomputation mode: some. Give one of none, "),
        ("--offload-parameters", "offload_parameters: needs ZeRO 3 and offload_optimizer"),
        ("--tiled-mlp", "tiled_mlp: recompute 'none' must be mlp or full"),
        ("--seq-len 9 --ring 8", "9 tokens a sequence are too few for 8 GPUs"),
        ("--expert-parallel 8", "expert_parallel = 8 requires a model with experts"),
    ],
    "estimate --model qwen3-30b-a3b --hardware h100-80gb --nodes 2 --seq-len 4096": [
        *EXPERTS,
        ("--expert-tensor-parallel 2", "requires expert_parallel above 1"),
        ("--recompute moe,norms", "parts must be of layernorm, core_attn"),
    ],
    "propose": [
        ("--method best", "argument --method: invalid choice: 'best' … --help)"),
        ("--method serch", "Did you mean search?"),
        ("l.npy --world-size=64", "Did you mean --gpus?"),
        ("--trainer megatrn", "Did you mean megatron?"),
        ("l --plot p", "--plot. It is an option of seqplan profile measure, seqplan prof"),
    ],
    PROPOSE: [
        ("--max-len 400000", "a context of 400000 tokens is beyond the 393216"),
        ("--optimizer-shards 9", "optimizer_shards must be an integer from 1 to the 8 … , not 9"),
        ("--profile gpt-7b", "did you mean gpt-7b-a100-40gb?"),
        ("--sync overlap=0.5", "--sync and overlap= of --sync … profile gpt-7b … of ZeRO-3"),
        ("--sync 900", "profile gpt-7b-a100-40gb is of ZeRO-3"),
        ("--seed 9223372036854775808", "--seed must be … below 2**63: 9223372036854775808"),
        ("--sync -1", "must be a number of 0 or more: '-1'"),
        (f"{LLAMA} --sync none,overlap=0.5", "overlap= of --sync is the share of the sync that is"),
        (f"{LLAMA} --schemes tp3", "has no scheme of layout tp3; its layouts are tp1, pp2"),
        ("--schemes u2", "layout must be tp and pp, as tp4.pp2: 'u2'"),
        ("--schemes two", "scheme 'two': 'two' is not understood"),
        ("--sync 'as usual'", "must be a number of 0 or more: 'as usual'"),
        (
            f"{LLAMA} --sync 1 --sync overlap=1.5",
            "argument --sync: must be a share from 0 to 1: '1.5'",
        ),
        ("--sync overlap=150%", "must be a share from 0 to 1: '150%'"),
    ],
    COMPARE: [
        ("--systems megatron,best", f"unknown system 'best'; there are {SYSTEMS[0]}"),
        ("--steps 1000000000", "steps must be 100000 or fewer, not 1000000000"),
        ("--sync 1,2,3", "must be derived, none, MS or MS,MS, and overlap=SHARE: '1,2,3'"),
        ("--assume cbc-s=0", "CBC needs at least 0.1 seconds, not 0"),
        ("--assume cbc=1", "unknown assumption 'cbc'; there are optimizer-ms"),
        ("--assume switch-ms=5 --systems static", "hotspa is not among --systems. Add it, or"),
        ("--sync none --assume optimizer-ms=5", "optimizer-ms: --sync none counts none. Leave"),
        ("--assume fast=1", "must be yes or no: '1'"),
        ("--assume 'fast=no fast=yes'", "has fast twice"),
        ("-o /nowhere/report.html", "/nowhere"),
        ("--sweep steps=1", "must be AXIS=V,V,… of the axes gpus, max-len, tokens: 'steps=1'"),
        ("--sweep gpus", "must be AXIS=V,V,… of the axes gpus, max-len, tokens: 'gpus'"),
        ("--sweep gpus=8,x", "must be an integer of 1 or more: 'x'"),
        ("--sweep 'gpus=8 gpus=16'", "has gpus twice"),
    ],
    "profile measure -o {output} --model {tiny}": [
        ("--lengths 9", "--lengths must be FROM..TO in tokens, as 64..4096: '9'"),
        ("--lengths 90..9", "lengths must rise"),
        ("--lengths 0..9", "--lengths must be from 1 to 1,000,000,000 tokens: 0..9"),
        ("--lengths 64..99999999999999999999", "--lengths must be from 1 to 1,000,000,000 tokens"),
        ("--lengths '64..²'", "as 64..4096: '64..²'"),
        ("--capacity-gib 0", "argument --capacity-gib: must be a number above 0: '0'"),
        ("--capacity-gib inf", "must be a number above 0: 'inf'"),
        ("--schemes x3", "'x3' is not understood"),
        ("--schemes ep0", "'ep0' is not understood. Write degrees of tp, pp, u and r, as"),
        ("--model deepseek-v3", "2 layers with gradients need 177 GiB on 1 ranks, this host"),
        (
            "--model llama3-8b --lengths 64..10000000 --measured-layers 1",
            "one pass over the points takes 41 days or more on a CPU. Use seqplan profile derive",
        ),
        ("--hardware h100-80gb", "unrecognized arguments: --hardware h100-80gb"),
        ("--model nonesuch", "neither a known model"),
        ("--recompute selective", "unknown recomputation mode: selective. Give one of none"),
        ("--recompute none,none", "must name each mode once: 'none,none'"),
        ("--model gpt-oss-20b", "window_layers 12, window 128, sinks True, expert_bias True: the "),
    ],
    "profile merge -o {output}": [
        ("none.jsonl --capacity-gib 8", "none.jsonl: cannot be read"),
        ("s.jsonl --capacity-gib 0", "must be a number above 0: '0'"),
        ("s.jsonl", "the following arguments are required: --capacity-gib"),
        ("s.jsonl --capacity-gib 8 --merge", "unrecognized arguments: --merge"),
    ],
    "profile derive -o {output}": [
        ("--model llama3-8b", "the following arguments are required: --hardware"),
        ("--hardware h100-80gb", "one of --model and --profile is required. Name"),
        ("--model llama3-8b --hardware x9", "--hardware 'x9': unknown. There are"),
        ("--model llama3-8b --hardware h100-80gb --plot a.html", "unrecognized arguments: --plot"),
        ("--model small --gpus 8", "--gpus. Did you mean --nodes with --gpus-per-node?"),
        ("qwen3-8b --model small --hardware h100", "qwen3-8b. Did you mean --model qwen3-8b?"),
        ("--profile none.json --hardware h100-80gb", "none.json: cannot be read"),
        ("--model llama3-8b --hardware h100-80gb --schemes tp3", "tp"),
        (
            f"{MEASURED} --hardware h100 --model llama-7b",
            "is of NVIDIA A800-80GB. Give --hardware a800-80gb, or --model without --profile for",
        ),
        (f"{MEASURED} --model llama-13b", "its model has hidden 4096, not 5120; give the"),
        (
            "--profile llama-7b --hardware a800-80gb",
            "profile 'llama-7b' is neither a file nor a shipped profile; did you mean llama-7b-",
        ),
        (f"{MEASURED} --tp-overlap 1", "--tp-overlap is for --model alone. With --profile, scheme"),
        (f"{MEASURED} --zero 2", "--zero is for --model alone. With --profile, schemes "),
    ],
    "profile derive --model qwen3-30b-a3b --hardware h100-80gb --nodes 2 -o {output}": EXPERTS,
    "profile verify -o {output}": [
        ("--checks attention,speed", "--checks attention,speed: 'speed' is no check; there"),
        ("--checks ''", "the argument after --checks is empty"),
        ("--minutes 0", "argument --minutes: must be a number above 0"),
        ("--device tpu", "argument --device: invalid choice: 'tpu'"),
    ],
}
"""Arguments after those of the key, and parts of the message that they get."""
INFEASIBLE = {
    "plan {lengths}": [
        ("--model llama3-70b --hardware h100 --gpus 4", "does not fit on 4 × h100-80gb"),
        ("--model llama3-8b --hardware h100 --gpus 1", "llama3-8b does not fit on 1 × h100-80gb: "),
        ("--model llama3-8b --hardware a100-40gb --gpus 4", "on 4 GPUs llama3-8b holds "),
    ],
    COMPARE: [("--gpus 1", "too few for llama-7b-a800-80gb")],
    PROPOSE: [
        (f"{LLAMA} --schemes measured --gpus 1", "1 GPU is too few … pp2, takes 2; add GPUs"),
        (f"{LARGE} --schemes tp16", "the smallest scheme to choose from, tp16, takes 16;"),
        (f"{LARGE} --gpus 4", "4 GPUs are too few for llama-32b-a800-80gb: the model states leave"),
    ],
}


@pytest.mark.parametrize(
    ("code", "command", "message"),
    [
        (code, f"{start} {arguments}", message)
        for code, table in ((2, BAD), (3, INFEASIBLE))
        for start, rows in table.items()
        for arguments, message in rows
    ],
)
def test_bad_input_is_one_line(
    code: int,
    command: str,
    message: str,
    lengths: Path,
    dense: PlannedFiles,
    tmp_path: Path,
    output: Path,
) -> None:
    """Later options replace earlier ones."""
    tiny = sizes(tmp_path, hidden=32, layers=4, heads=4, kv_heads=2, ffn=48, vocab=50)
    names = {"lengths": lengths, "dense": dense, "output": output, "tiny": tiny}
    names |= {"huge": 10**400, "configs": CONFIGS}
    line = complaint(call(*(word.format(**names) for word in shlex.split(command))), code)
    assert [part for part in message.split(" … ") if part not in line] == [], line
    nothing_left(output)


# Lengths


@pytest.mark.parametrize("command", ["propose", "plan", "lengths"])
def test_bad_lengths(command: str, tmp_path: Path, output: Path, lockstep: PlannedFiles) -> None:
    """The messages of each format are tested with its source."""
    sources = {"a.txt": "5\n-3\n", "a.xml": "1\n", "none.npy": None}
    messages = ("length -3 is not positive", ".xml is not a source of lengths", "no such file")
    for (name, content), message in zip(sources.items(), messages, strict=True):
        source = tmp_path / name
        if content is not None:
            source.write_text(content)
        if command == "propose":
            line = complaint(propose(source, output))
        elif command == "plan":
            line = complaint(call("plan", "--proposal", lockstep.proposal, source, "-o", output))
        else:
            line = complaint(call("lengths", source, "-o", output.with_suffix(".npy")))
        assert message in line
        assert name in line
        nothing_left(output)


def test_an_output_is_no_source_of_lengths(tmp_path: Path) -> None:
    source = tmp_path / "a.npy"
    np.save(source, np.array([5, 7]))
    for name in (source, tmp_path / "?.npy"):
        outcome = call("lengths", name, "-o", source)
        assert "is an input of this command" in complaint(outcome)


@pytest.mark.parametrize("option", ["-o", "--plot"])
def test_samples_are_not_overwritten(tmp_path: Path, option: str) -> None:
    samples = tmp_path / "samples.jsonl"
    options = {"--samples": samples, "-o": tmp_path / "profile.json", option: samples}
    line = ["profile", "measure", "--model", "small", *sum(options.items(), ())]
    assert "is an input of this command" in complaint(call(*line))


# Infeasible


def test_a_sequence_longer_than_any_scheme_holds(tmp_path: Path, output: Path) -> None:
    source = tmp_path / "a.txt"
    source.write_text("100\n20000\n300\n")
    few = ("--tokens", 1000)
    limit = max(model.max_sequence for model in load_shipped("gpt-7b-a100-40gb").usable(4, 65536))
    message = complaint(propose(source, output, "--gpus", 4, "--max-len", 65536), 3)
    assert message == (
        "sequence 1 has 20000 tokens, but on 4 GPUs the longest that any scheme of "
        f"gpt-7b-a100-40gb holds is {limit} (u4); use --max-len {limit} to truncate, or more GPUs"
    )
    nothing_left(output)
    # Its fix works.
    assert propose(source, output, "--gpus", 4, "--max-len", limit, *few).code == 0
    output.unlink()
    assert propose(source, output, "--gpus", 8, "--max-len", 65536, *few).code == 0


def test_a_sync_is_printed_and_kept(lengths: Path, output: Path) -> None:
    more = ("--profile", "llama-7b-a800-80gb", "--tokens", 8000)
    text = propose(lengths, output, *more).out
    assert re.search(r"All with the sync, \d+ ms( to \d+ ms)?, and without the optimizer\.", text)
    assert "The sync is derived for each layout" in text
    assert "derived, not measured (seqplan profile show)" in text
    document = json.loads(output.read_text())
    assert {"tp": 1, "pp": 1}.items() <= document["sync"]["by_layout"][0].items()
    assert document["sync"]["by_layout"][0].keys() == {"tp", "pp", "ms", "alone_ms"}
    assert document["sync"]["by_layout"][1].keys() == {"tp", "pp", "ms"}
    assert (document["layouts"]["chosen"] or "several layouts") in text
    output.unlink()
    text = propose(lengths, output, *more, "--gpus", 2, "--sync", "900,1400").out
    assert "All with the sync, 900 ms, and without the optimizer. The sync is as given:" in text
    assert json.loads(output.read_text())["sync"]["heterogeneous_ms"] == 1400
    output.unlink()
    more = (*more, "--gpus", 2, "--schemes", "measured")
    text = propose(lengths, output, *more, "--sync", "none").out
    assert "with the sync" not in text
    assert "derived" not in text
    assert "sync" not in json.loads(output.read_text())


def test_a_step_that_no_candidate_holds(dense: PlannedFiles, tmp_path: Path, output: Path) -> None:
    """Steps before it were planned, but a partial file is no plan file."""
    proposal = tmp_path / "proposal.json"
    short = tmp_path / "short.txt"
    short.write_text("50\n" * 100)
    outcome = call(
        *("propose", "--profile", dense.profile, "--gpus", 4, short),
        *("--max-len", 60000, "--tokens", 400, "-o", proposal),
    )
    assert outcome.code == 0
    batches = tmp_path / "batches.jsonl"
    batches.write_text('{"lengths":[7]}\n{"ids":[5,6],"lengths":[9,59999]}\n{"lengths":[7]}\n')
    for workers in (1, 2):
        completed = call(
            *("plan", "--proposal", proposal, batches, "--workers", workers), *("-o", output)
        )
        assert completed.code == 3
        assert completed.err.splitlines()[-1].startswith(
            "seqplan: step 1: sequence 6 has 59999 tokens"
        )
        nothing_left(output)


# Profiles


def test_an_unknown_profile(dense: PlannedFiles) -> None:
    for command in (("check", "plans", dense.plans, "--profile"), ("profile", "show")):
        assert "did you mean" in complaint(call(*command, "llama-7b-a800"))


def test_a_malformed_profile(tmp_path: Path, lengths: Path, output: Path) -> None:
    document: Any = copy.deepcopy(dict(load_shipped("gpt-7b-a100-40gb").document))
    document["schemes"][2].pop("b")
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    line = complaint(propose(lengths, output, "--profile", path))
    assert line == f"{path}: schemes[2].b: is missing"
    nothing_left(output)
