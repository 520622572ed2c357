"""Training, resuming and the examples on ranks, and the same by plain code."""

import importlib
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from attached_inputs import CASES, Rows, data, model, optimizer, plans, warm_up

from seqplan import runtime

EXAMPLES = Path(__file__).parents[2] / "examples"


def trained_on_ranks(
    rank: int, groups: runtime.Communicators, folder: Path, url: str, name: str
) -> Any:
    """Losses, norms, reports, log-probabilities, a local batch's logits, read back."""
    from transformers import AutoModelForCausalLM

    from seqplan import huggingface

    reports: list[huggingface.StepReport] = []
    attached_model = CASES[name](rank)
    if name == "llama":
        attached_model.gradient_checkpointing_enable({"use_reentrant": False})
    if name == "gemma2" and rank == 0:  # which takes seconds
        # Of one layer, all of it but making code, and no more than twice.
        importlib.import_module("torch._dynamo").config.recompile_limit = 2
        attached_model.model.layers[1].self_attn.compile(backend="eager")
    job = huggingface.attach(
        attached_model,
        data(),
        optimizer=optimizer,
        scheduler=warm_up,
        loss_rows=16,
        callbacks=[reports.append],
        groups=groups,
        sharding="by_parameter" if name in ("gemma2", "llama") else "flat",
        reduce="micro-batch" if name in ("gpt_oss", "llama", "LoRA") else "step",
    )
    results, values, logits = [], [], None
    sources: dict[str, Any] = {"LoRA": plans(), "deepseek_v3": url}
    for step in job.steps(sources.get(name, folder / "plans.jsonl")):
        results.append(job.run(step, clip_norm=1.0))
        if step.view.step == 1:  # between steps, and training goes on
            values = job.token_values(step)
            with job.evaluation() as evaluated:
                logits = evaluated(input_ids=torch.arange(10).view(2, 5)).logits.numpy()
    job.save_pretrained(folder / name)
    equal = True
    if rank == 0 and name != "LoRA":
        stored = AutoModelForCausalLM.from_pretrained(folder / name).state_dict()
        equal = all(torch.equal(stored[n], v) for n, v in attached_model.state_dict().items())
    elif rank == 0:
        from peft import PeftModel

        again = PeftModel.from_pretrained(model("llama"), folder / name).state_dict()
        equal = all(torch.equal(again[n], v) for n, v in attached_model.state_dict().items())
    return {
        "losses": [result.loss for result in results],
        "norms": [result.gradient_norm for result in results],
        "reports": reports,
        "values": [(id, value) for id, value in values],
        "logits": logits,
        "equal": equal,
        "attention": attached_model.config._attn_implementation,
    }


def trained_plainly(name: str) -> Any:
    """The same by plain code, each document alone."""
    plain = CASES[name](0)
    stepping = optimizer(plain.named_parameters())
    schedule = warm_up(stepping)
    trained = [value for value in plain.parameters() if value.requires_grad]
    losses, norms, values, logits = [], [], [], None
    routers: list[tuple[torch.Tensor, ...]] = []
    routed = getattr(plain.config, "output_router_logits", False)

    def of(id: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        row = Rows()[id]
        tokens = torch.from_numpy(row["input_ids"][:length])
        with torch.no_grad():  # rotary embeddings forget the document before
            plain(input_ids=tokens[None, :1])
        output = plain(input_ids=tokens[None])
        routers.append(output.router_logits if routed else ())
        new = output.logits[0].log_softmax(-1)
        weights = torch.from_numpy(row["mask"] * row["weights"])[1:length]
        return new[:-1].gather(1, tokens[1:, None])[:, 0], weights

    for plan in plans():
        batch = list(zip(plan.ids, plan.lengths, strict=True))
        stepping.zero_grad()
        routers.clear()
        rows = [of(*entry) for entry in batch]
        divisor = sum(weights.sum().item() for _, weights in rows)
        loss = -sum((new * weights).sum() for new, weights in rows) / divisor  # type: ignore[operator]
        if routed:  # by transformers' function, of all documents together
            function = vars(sys.modules[type(plain).__module__])["load_balancing_loss_func"]
            together = tuple(torch.cat(layer) for layer in zip(*routers, strict=True))
            loss = loss + 0.1 * function(together, plain.num_experts, plain.num_experts_per_tok)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0).item())
        stepping.step()
        schedule.step()
        if plan.step == 1:
            with torch.no_grad():
                values = [(id, of(id, length)[0].numpy()) for id, length in batch]
                logits = plain(input_ids=torch.arange(10).view(2, 5)).logits.numpy()
    return {"losses": losses, "norms": norms, "values": values, "logits": logits}


def resumed(rank: int, groups: runtime.Communicators, folder: Path) -> dict[str, Any]:
    """Losses of three steps with dropout; and of two, then one of a job that goes on from there."""
    from seqplan import huggingface

    def job(seed: int) -> huggingface.Job:
        dropping = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.0}
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
        attached = huggingface.attach(
            model("gpt2", **sizes, **dropping),
            data(),
            optimizer=optimizer,
            scheduler=warm_up,
            groups=groups,
        )
        torch.manual_seed(100 * seed + rank)
        return attached

    straight = job(1)
    losses = [straight.run(step).loss for step in straight.steps(plans())]
    before = job(1)
    first = [before.run(step).loss for step in before.steps(plans()[:2])]
    before.save_checkpoint(folder, {"seen": [1, 2]})
    after = job(2)
    empty = after.resume(folder / "nothing")
    user = after.resume(folder)
    second = [after.run(step).loss for step in after.steps(plans())]
    return {"straight": losses, "parts": first + second, "user": user, "empty": empty}


def page(folder: Path) -> tuple[int, str]:
    """Run the step after the page's program, and return its saved dtype."""
    from transformers import AutoModelForCausalLM

    from seqplan import huggingface

    text = (EXAMPLES.parent / "docs" / "huggingface.md").read_text(encoding="utf-8")
    program, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {
        "AutoModelForCausalLM": AutoModelForCausalLM,
        "huggingface": huggingface,
        "runtime": runtime,
        "torch": torch,
        "name": folder / "llama",
        "dataset": Rows(),
    }
    os.chdir(folder)
    exec(program, names)
    return names["job"].next_step, str(AutoModelForCausalLM.from_pretrained("trained").dtype)


def examples(rank: int, world_size: int, ports: list[int], folder: Path) -> Any:
    """What each example's ``main`` returns, started as by torchrun; the saved model's words.

    With fewer steps than the examples have.
    """
    from transformers import AutoConfig

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": str(rank), "WORLD_SIZE": str(world_size)}
    outcomes = []
    for port, name, steps, arguments in (
        (ports[0], "fine_tune", {"STEPS": 8}, [["--output", str(folder / "fine-tuned")]]),
        (ports[1], "policy_gradient", {"ROLLOUTS": 5}, []),
    ):
        os.environ["MASTER_PORT"] = str(port)
        main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
        assert main.__globals__.keys() >= steps.keys()
        main.__globals__.update(steps)
        outcomes.append(main(*arguments))
    return *outcomes, AutoConfig.from_pretrained(folder / "fine-tuned").vocab_size
