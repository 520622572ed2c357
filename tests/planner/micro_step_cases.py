"""Few sequences on few ranks, for micro-steps of one stage and of several."""

from collections.abc import Sequence

from hypothesis import strategies as st
from oracles.micro_steps import least_micro_steps_ms

from seqplan import Batch, Scheme
from seqplan.costs.latency import Latency
from seqplan.costs.scheme_model import SchemeModel
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.lockstep.bounds.micro_step_bounds import stage_class
from seqplan.plans.plan import Provenance

PLANNER = Provenance("0", 0, "sha256:0", None)

MicroStepCase = tuple[list[SchemeModel], Batch, int]


@st.composite
def micro_step_cases(draw: st.DrawFn, stages: Sequence[int] = (1,)) -> MicroStepCase:
    """Several degrees; with stages one or two tp ranks, too."""
    pp = draw(st.sampled_from(stages))
    tp = draw(st.sampled_from([1, 2])) if pp > 1 else 1
    groups = draw(st.sampled_from([1, 2, 3, 4]))
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    room = draw(st.integers(-(-max(lengths) // groups), 2 * max(lengths)))
    a, b = draw(st.sampled_from([0.0, 0.02, 0.2])), draw(st.sampled_from([0.3, 1.0]))
    c = draw(st.sampled_from([0.0, 1.0, 12.0]))
    loss, more_c = draw(st.sampled_from([1.0, 1.2])), draw(st.sampled_from([0.0, 3.0, 9.0]))
    models = []
    for degree in sorted({1, groups, draw(st.integers(1, groups))}):
        more = loss if degree > 1 else 1.0
        latency = Latency(a / degree, b / degree * more, c + more_c / degree)
        scheme = Scheme(tp, pp, ring=degree) if pp > 1 else Scheme(ulysses=degree)
        capacity = room * degree * (2 * tp if pp > 1 else 1)
        models.append(SchemeModel(scheme, latency, capacity))
    return models, Batch.from_lengths(lengths), groups * tp * pp


def find_least_ms(case: MicroStepCase) -> float:
    """Enumerate all micro-steps of a case; the least time (ms)."""
    models, batch, gpus = case
    stages = models[0].scheme.pp
    classes = [stage_class(model) for model in models]
    return least_micro_steps_ms(classes, batch.lengths, gpus // stages, stages)


def list_models(
    profile: str, gpus: int, max_len: int, layout: tuple[int, int]
) -> list[SchemeModel]:
    """List a shipped profile's models of one layout."""
    usable = load_shipped(profile).usable(gpus, max_len)
    return [model for model in usable if (model.scheme.tp, model.scheme.pp) == layout]
