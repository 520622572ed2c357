"""The command line from lengths to explained plans, for both kinds of profile."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call, complaint, succeeded
from planned_files import MAX_LEN, PlannedFiles, propose

from seqplan import Planner, Proposal, read_plans, write_plans
from seqplan.costs.shipped.catalogue import list_shipped
from seqplan.planner.simulation.timeline import simulate_plan_ms
from seqplan.plans.lint import lint


@pytest.fixture(params=["dense", "lockstep"])
def plan_files(request: pytest.FixtureRequest) -> PlannedFiles:
    return request.getfixturevalue(request.param)


def as_json(*arguments: str | Path | int) -> Any:
    return json.loads(succeeded(call(*arguments, "--json")))


def test_propose_tells_people_and_machines_the_same(
    plan_files: PlannedFiles, tmp_path: Path
) -> None:
    output = ("--schemes", "measured", "-o", tmp_path / "again.json")
    document = as_json(*plan_files.propose_arguments, *output)
    assert document == json.loads(plan_files.proposal.read_text())
    assert (tmp_path / "again.json").read_bytes() == plan_files.proposal.read_bytes()
    assert document["lengths"]["sequences"] == 3000
    assert document["lengths"]["truncated"] == int((np.load(plan_files.lengths) > MAX_LEN).sum())
    assert 0 < document["lower_bound_ms"] <= document["expected_ms"]
    shares = [candidate["runs"] for candidate in document["candidates"]]
    assert all(0 <= share <= 1 for share in shares)
    assert max(shares) == 1


def test_step_of_more_tokens_than_the_data_is_rejected(tmp_path: Path) -> None:
    """By propose as by plan, before anything is drawn."""
    few = tmp_path / "few.txt"
    few.write_text("1000\n2000\n4000\n")
    output = tmp_path / "proposal.json"
    for tokens in (8000, 10**15):
        outcome = propose(few, output, "--tokens", tokens)
        assert f"has 7000 tokens, fewer than a step of {tokens}, which would" in complaint(outcome)
        assert not output.exists()
    succeeded(propose(few, output, "--tokens", 7000))
    outcome = call("plan", "--proposal", output, few, "--tokens", 8000)
    assert "of 8000, which would repeat sequences. Give --tokens of at most 7000" in complaint(
        outcome
    )
    for command in ("plan", "propose", "compare"):
        source = ("--profile", "llama3-8b-h100-80gb", "--gpus", 8, "--max-len", 4000)
        message = complaint(call(command, few, *source))
        assert (
            "a step of 25000, which would repeat sequences. Give --tokens of at most 70" in message
        )


def test_steps_shorter_than_a_sequence_may_be_are_noted(tmp_path: Path, lengths: Path) -> None:
    output = tmp_path / "proposal.json"
    text = succeeded(propose(lengths, output, "--tokens", MAX_LEN - 1))
    assert f"sequences truncated to {MAX_LEN:,} tokens." in text
    assert "A step of 4,095 tokens is shorter than --max-len 4,096: a longer sequence is" in text
    assert "is shorter than" not in succeeded(propose(lengths, output, "--tokens", MAX_LEN))


def test_rings_that_a_profile_lacks_on_a_large_cluster_are_noted(
    tmp_path: Path, lengths: Path
) -> None:
    options = ("--profile", "llama-7b-a800-80gb", "--max-len", 8192, "--tokens", 20_000)
    few, many = (
        succeeded(propose(lengths, tmp_path / f"{gpus}.json", *options, "--gpus", gpus))
        for gpus in (64, 512)
    )
    assert "longest ring" not in few
    assert "derived for 512 GPUs have rings of up to 16" in " ".join(many.split())


def test_trainer_holds_from_proposal_to_plans(tmp_path: Path, lengths: Path) -> None:
    output = tmp_path / "proposal.json"
    hosted = ("--profile", "llama-7b-a800-80gb", "--tokens", 8000, "--trainer")
    succeeded(propose(lengths, output, *hosted, "seqplan-huggingface"))
    assert json.loads(output.read_text())["trainer"] == "seqplan-huggingface"
    plan = ("plan", "--proposal", output, lengths, "--steps", 1)
    line = json.loads(succeeded(call(*plan, "--trainer", "seqplan-huggingface")))
    assert {(p["scheme"]["tp"], p["scheme"]["pp"]) for p in line["pipelines"]} == {(1, 1)}
    message = complaint(call(*plan, "--trainer", "megatron"))
    assert message.startswith(f"--trainer megatron: {output} was made for seqplan-huggingface. ")
    message = complaint(propose(lengths, output, *hosted, "verl-fsdp"))
    assert "is of ZeRO-1, but verl-fsdp runs ZeRO-3. Measure or derive" in message


def test_the_published_method_proposes_too(dense: PlannedFiles, tmp_path: Path) -> None:
    path = tmp_path / "eq4.json"
    measured = (*dense.propose_arguments, "--schemes", "measured")
    document = as_json(*measured, "--method", "eq4", "-o", path)
    ours = as_json(*measured, "--sync", "none")
    assert document["method"] == "eq4"
    assert ours["method"] == "search"
    # Both are judged on the same batches, and no method is below the bound of the other.
    assert document["judged_batches"] == ours["judged_batches"]
    assert document["expected_ms"] >= ours["lower_bound_ms"]
    assert ours["expected_ms"] >= document["lower_bound_ms"]
    text = succeeded(call("plan", "--proposal", path, dense.lengths, "--steps", 2, "--json"))
    assert [json.loads(line)["step"] for line in text.splitlines()] == [0, 1]


def test_the_planned_file_is_sound(plan_files: PlannedFiles) -> None:
    proposal = Proposal.load(plan_files.proposal)
    models = proposal.workload.models(proposal.profile)
    data = np.load(plan_files.lengths)
    plans = list(read_plans(plan_files.plans))
    assert [plan.step for plan in plans] == list(range(plan_files.steps))
    ids: set[int] = set()
    for plan in plans:
        assert lint(plan, models) == []
        assert simulate_plan_ms(plan) <= plan.predicted_ms + 1e-3
        assert plan.provenance.proposal == proposal.digest
        assert plan.provenance.profile == proposal.profile.digest
        assert plan.world_size == plan_files.gpus
        assert sum(plan.lengths) == plan.tokens <= plan_files.tokens
        assert list(plan.lengths) == np.minimum(data[list(plan.ids)], MAX_LEN).tolist()
        assert not ids & set(plan.ids)
        ids |= set(plan.ids)
        # ZeRO-3 runs in micro-steps, all else does not.
        assert {p.micro_step is None for p in plan.pipelines} == {not proposal.profile.lockstep}


def test_plan_reports_its_summary(plan_files: PlannedFiles, tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    document = as_json(*plan_files.plan_arguments, "-o", path)
    assert path.read_bytes() == plan_files.plans.read_bytes()
    plans = list(read_plans(path))
    assert document["steps"] == plan_files.steps
    assert document["tokens"] == sum(plan.tokens for plan in plans)
    assert document["truncated"] == int((np.load(plan_files.lengths) > MAX_LEN).sum())
    mean = sum(plan.predicted_ms for plan in plans) / len(plans)
    assert document["predicted_ms_mean"] == pytest.approx(mean, abs=1e-3)
    assert document["gap_max"] == max(plan.gap for plan in plans)
    assert sum(document["strategies"].values()) == plan_files.steps


def test_windows_of_steps_print_their_moves(plan_files: PlannedFiles, tmp_path: Path) -> None:
    path = tmp_path / "plans.jsonl"
    windows = ("plan", "--proposal", plan_files.proposal, plan_files.lengths, "--window", 4)
    document = as_json(*windows, "--steps", plan_files.steps, "-o", path)
    drawn, composed = list(read_plans(plan_files.plans)), list(read_plans(path))
    assert sorted(i for p in composed for i in p.ids) == sorted(i for p in drawn for i in p.ids)
    pairs = list(zip(drawn, composed, strict=True))
    moved = sum(len(set(after.ids) - set(before.ids)) for before, after in pairs)
    assert document["window"]["moved_sequences"] == moved
    assert document["window"]["largest_delay"] < 4
    text = succeeded(call(*windows, "--steps", 2, "-o", path))
    first = sum(len(set(after.ids) - set(before.ids)) for before, after in pairs[:2])
    assert f"windows of 4 steps: {first or 'no'} sequence" in text
    assert ("standard deviation" in text) == (first > 0)
    assert ("the last window has 2 of its 4 steps" in text) == (first > 0)
    # Windows are composed whole: fewer steps of a run are its first steps.
    assert [plan.ids for plan in read_plans(path)] == [plan.ids for plan in composed[:2]]


def test_windows_that_move_nothing_say_only_that(dense: PlannedFiles, tmp_path: Path) -> None:
    equal = tmp_path / "equal.npy"
    np.save(equal, np.full(1000, 100))
    given = ("--proposal", dense.proposal, equal, "--window", 2, "--steps", 2)
    lines = succeeded(call("plan", *given, "-o", tmp_path / "plans.jsonl")).splitlines()
    assert "windows of 2 steps: no sequence was moved, the steps are as drawn" in lines
    assert not [line for line in lines if "more often than at random" in line]


def test_windows_of_very_many_steps_are_rejected(dense: PlannedFiles) -> None:
    given = ("--proposal", dense.proposal, dense.lengths, "--window", 5000)
    assert complaint(call("plan", *given)) == (
        "a window has from 1 to 4096 steps, not 5000. Change it"
    )


def test_plans_are_exported_for_loaders(plan_files: PlannedFiles, tmp_path: Path) -> None:
    export, path = tmp_path / "export.jsonl", tmp_path / "plans.jsonl"
    given = ("--proposal", plan_files.proposal, plan_files.lengths, "--steps", 2)
    succeeded(call("plan", *given, "-o", path))
    assert succeeded(call("export", path, "-o", export)) == f"exported: {export}, 2 steps\n"
    lines = [json.loads(line) for line in export.read_text().splitlines()]
    for plan in read_plans(path):
        of_step = [line for line in lines if line["step"] == plan.step]
        assert [line["rank"] for line in of_step] == list(range(plan.world_size))
        ids = {i for line in of_step for micro in line["micro_batches"] for i in micro}
        assert ids == set(plan.ids)
    rejected = complaint(call("export", path, "-o", tmp_path / "export.csv"))
    assert "an export ends in .jsonl or .parquet" in rejected
    assert "is an input of this command" in complaint(call("export", path, "-o", path))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    complaint(call("export", empty, "-o", tmp_path / "none.jsonl"))
    assert not (tmp_path / "none.jsonl").exists()


def test_check_against_nothing_a_profile_and_a_proposal(plan_files: PlannedFiles) -> None:
    text = succeeded(call("check", "plans", plan_files.plans))
    assert text.startswith(f"{plan_files.steps} plans, no broken rules")
    assert "not checked" in text
    for source in ("--profile", plan_files.profile), ("--proposal", plan_files.proposal):
        text = succeeded(call("check", "plans", plan_files.plans, *source))
        of_part = source[0] == "--profile" and plan_files.profile == "llama-7b-a800-80gb"
        by = ", by 13 of the profile's 100 schemes" if of_part else ""  # the measured ones
        assert text == f"{plan_files.steps} plans, no broken rules{by}\n"
        assert as_json("check", "plans", plan_files.plans, *source) == {
            "steps": plan_files.steps,
            "broken": [],
        }


def test_a_false_bound_is_found_though_its_digest_is_true(
    plan_files: PlannedFiles, tmp_path: Path
) -> None:
    source = ("--proposal", plan_files.proposal)
    text = succeeded(call("check", "plans", plan_files.plans, *source, "--prove"))
    assert text == f"{plan_files.steps} plans, no broken rules, every bound proven\n"
    false = tmp_path / "false.jsonl"
    with write_plans(false) as write:
        for plan in read_plans(plan_files.plans):
            bounds = dict.fromkeys(("lower_bound_ms", "layout_lower_bound_ms"), plan.predicted_ms)
            write(replace(plan, gap=0.0, **bounds))
    assert "no broken rules" in succeeded(call("check", "plans", false, *source))
    optimal = all(plan.gap < 1e-5 for plan in read_plans(plan_files.plans))
    assert optimal == (plan_files.profile == "llama-7b-a800-80gb")
    outcome = call("check", "plans", false, *source, "--prove")
    assert outcome.code == (0 if optimal else 1)  # an optimal plan cannot be overstated
    assert ("lower_bound_ms" in outcome.out) != optimal
    assert ("is not proven" in outcome.out) != optimal
    assert "--prove needs the profile" in call("check", "plans", false, "--prove").err
    assert "--exact is for proofs" in call("check", "plans", false, *source, "--exact").err


def test_a_witness_is_written_for_a_step(plan_files: PlannedFiles) -> None:
    explain = ("explain", plan_files.plans, "--step", 1, "--witness")
    outcome = call(*explain)
    assert (outcome.code, "Give --profile or --proposal" in outcome.err) == (2, True)
    assert "--rank: not allowed with argument --witness" in call(*explain, "--rank", 0).err
    outcome = call(*explain, "--proposal", plan_files.proposal)
    if outcome.code:
        assert "runs in micro-steps" in outcome.err
    else:
        assert json.loads(outcome.out)["proof"] in ("prices", "gpu_time")


def test_explain_simulates_micro_batches_in_their_modes(tmp_path: Path) -> None:
    """Forward's share differs by mode: the profile states it, which is found if it ships."""
    planner = Planner.from_profile(
        "llama3-70b-h100-80gb", gpus=32, max_len=32_768, layout="tp8.pp2"
    )
    lengths = [30_000, 20_000, *range(500, 9_000, 250)] * 3
    plan = planner.plan(lengths)
    assert len({micro.recompute for part in plan.pipelines for micro in part.micro_batches}) > 1
    unknown = replace(
        plan, step=1, provenance=replace(plan.provenance, profile="sha256:" + "0" * 64)
    )
    path = tmp_path / "plans.jsonl"
    with write_plans(path) as write:
        write(plan)
        write(unknown)
    last = succeeded(call("explain", path, "--step", 0)).splitlines()[-1]
    assert last == f"1F1B simulation: {plan.predicted_ms:,.1f} ms"
    last = succeeded(call("explain", path, "--step", 1)).splitlines()[-1]
    assert last.endswith(
        "forward's share of a micro-batch assumed: the plan's profile does not ship "
        "and was not given"
    )


def test_explain_a_step_and_a_rank(plan_files: PlannedFiles) -> None:
    plans = list(read_plans(plan_files.plans))
    text = succeeded(call("explain", plan_files.plans, "--step", 2))
    assert "step 2" in text
    assert "1F1B simulation" in text
    document = as_json("explain", plan_files.plans, "--step", 2)
    assert document == json.loads(plan_files.plans.read_text().splitlines()[2])
    held = [0] * len(plans[2].lengths)
    for rank in range(plan_files.gpus):
        view = json.loads(succeeded(call("explain", plan_files.plans, "--step", 2, "--rank", rank)))
        assert (view["rank"], view["step"], view["digest"]) == (rank, 2, document["digest"])
        for mine in view["pipelines"]:
            if mine["at"]["tp"] or mine["at"]["pp"]:
                continue  # tp and pp ranks hold the same tokens
            for part in [part for micro in mine["micro_batches"] for part in micro["sequences"]]:
                held[part["position"]] += sum(stop - start for start, stop in part["ranges"])
    assert held == list(plans[2].lengths)


def test_profiles_lists_and_describes() -> None:
    listing = succeeded(call("profile", "list"))
    assert max(map(len, listing.splitlines())) <= 100
    described = as_json("profile", "list")
    assert [profile["name"] for profile in described] == list(list_shipped())
    for profile in described:
        assert profile["name"] in listing
        assert profile["source"].split(" ")[0] in listing
    detailed = as_json("profile", "show", "llama-32b-a800-80gb", "--gpus", 64)
    by_scheme = {row["scheme"]: row for row in detailed["schemes"]}
    assert by_scheme["tp16"]["max_len"] == 43614
    assert by_scheme["pp2"]["max_len"] == 0
    assert list(detailed["flagged"]) == ["pp2"]
    text = succeeded(call("profile", "show", "llama-32b-a800-80gb", "--gpus", 64))
    assert "43,614" in text
    assert "no room for the model states: pp2, tp2, " in text
    text = succeeded(call("profile", "show", "llama-32b-a800-80gb", "--gpus", 8))
    assert "more than 8 GPUs: tp2.pp6, tp4.pp4, tp4.pp6, tp8.pp2, tp8.pp3, tp8.pp4, tp16, " in text
    assert " derived\n" in text
    assert {row["origin"] for row in detailed["schemes"]} == {"published", "derived"}
    assert "tp4.u2°" in succeeded(call("profile", "show", "llama-32b-a800-80gb", "--gpus", 64))


def test_batches_of_the_caller(plan_files: PlannedFiles, tmp_path: Path) -> None:
    batches = tmp_path / "batches.jsonl"
    batches.write_text(
        '{"step":3,"ids":[17,4,9],"lengths":[812,3097,1]}\n\n'
        '{"step":7,"lengths":[5,6],"loss_tokens":4}\n'
        '{"lengths":[100]}\n'
    )
    text = succeeded(call("plan", "--proposal", plan_files.proposal, batches))
    (tmp_path / "plans.jsonl").write_text(text)
    plans = list(read_plans(tmp_path / "plans.jsonl"))
    assert [plan.step for plan in plans] == [3, 7, 8]
    assert [plan.ids for plan in plans] == [(17, 4, 9), (3, 4), (5,)]
    assert [plan.lengths for plan in plans] == [(812, 3097, 1), (5, 6), (100,)]
    assert [plan.loss_tokens for plan in plans] == [3907, 4, 99]
    assert succeeded(
        call("check", "plans", tmp_path / "plans.jsonl", "--proposal", plan_files.proposal)
    )


def test_sampled_and_given_batches_have_equal_plans(
    plan_files: PlannedFiles, tmp_path: Path
) -> None:
    batches = tmp_path / "batches.jsonl"
    batches.write_text(
        "".join(
            json.dumps({"step": plan.step, "ids": plan.ids, "lengths": plan.lengths}) + "\n"
            for plan in read_plans(plan_files.plans)
        )
    )
    text = succeeded(call("plan", "--proposal", plan_files.proposal, batches))
    assert text == plan_files.plans.read_text()
