"""The columns of ``check training`` on the parameter sync of a step."""

from random_plans import one_pipeline_plan

from seqplan.api.check_training.check import CheckedStep, count_step_gathered, size_model
from seqplan.api.cli.check.check_training import step_cells, step_columns
from seqplan.plans.scheme import Scheme
from seqplan.plans.views.sync_count import AllGathered

PLANS = [
    one_pipeline_plan(scheme, [9, 4], step=step)
    for step, scheme in enumerate((Scheme(ulysses=4), Scheme(tp=2, pp=2), Scheme(tp=4)))
]
HIDDEN, LAYERS, WORDS = 64, 2, 256
NORMS = (2 * LAYERS + 1) * HIDDEN
LAYER = (4 + 2 + 2 + 4) * 16 * HIDDEN + 3 * 128 * HIDDEN
"""q, k, v and output of four heads and two of keys; gate, up and down."""


def test_the_model_is_the_one_that_is_counted_here() -> None:
    sizes = size_model(PLANS[:2])
    assert (sizes.hidden, sizes.layers, sizes.vocab) == (HIDDEN, LAYERS, WORDS)
    assert (sizes.heads, sizes.kv_heads, sizes.ffn) == (4, 2, 128)


def test_all_gather_size_of_the_fullest_rank() -> None:
    sizes = size_model(PLANS[:2])
    everything = NORMS + 2 * WORDS * HIDDEN + LAYERS * LAYER
    assert count_step_gathered(PLANS[0], sizes) == AllGathered(everything * 3 // 4, None)
    # A half of a layer and of one end, some of which the rank may hold already.
    cut = count_step_gathered(PLANS[1], sizes)
    assert cut.elements <= NORMS * 3 // 4 + (LAYER + WORDS * HIDDEN) // 2 < everything // 2
    assert cut.messages is not None


def test_the_columns_of_a_step() -> None:
    steps = [CheckedStep(plan, 5.0, 5.0, 2.0, 2.0, 100.0) for plan in PLANS]
    head, *_ = step_columns(PLANS, "bfloat16").head()
    assert head.split()[10:12] == ["gathered", "messages"]
    cells = [step_cells(step, PLANS, "bfloat16") for step in steps]
    gathered = count_step_gathered(PLANS[1], size_model(PLANS))
    assert cells[0][7] == "none"
    assert cells[1][6:8] == (f"{2 * gathered.elements / 2**20:.2f} MiB", str(gathered.messages))
