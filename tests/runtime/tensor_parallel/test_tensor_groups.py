"""Groups of tensor parallelism: made by all ranks, at the start or when a step needs them."""

import logging

from ranks import run_ranks

from seqplan.plans.scheme import Scheme
from seqplan.plans.views.placement import PlacedPipeline
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.tensor_parallel.process_groups import split_into_disjoint

RANKS = 4
ALIGNED = {(0, 1), (2, 3), (0, 1, 2, 3)}
CROSSED = (PlacedPipeline(Scheme(tp=2), (3, 1)), PlacedPipeline(Scheme(tp=2), (0, 2)))


def made_groups(rank: int, world_size: int) -> list[tuple[set[tuple[int, ...]], int]]:
    """The groups at the start and after each of two placements.

    With each how many warnings there were. The first rank knows of tp 2, the others of tp 4.
    """
    warned: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = warned.append  # type: ignore[method-assign]
    logging.getLogger("seqplan").addHandler(handler)
    job = StagedLlama(
        Llama(ModelConfig()), Communicators.create(), tensor_degrees=(1, 4 if rank else 2, 64)
    )
    groups = job._model.tensor_groups
    states = [(set(groups._groups), len(warned))]
    for placement in ((PlacedPipeline(Scheme(tp=2, pp=2), (0, 1, 2, 3)),), CROSSED, CROSSED):
        groups.extend(placement)
        states.append((set(groups._groups), len(warned)))
    return states


def test_groups_of_all_aligned_blocks_at_the_start_and_others_with_a_warning() -> None:
    everything = ALIGNED | {(3, 1), (0, 2)}
    for rank, states in enumerate(run_ranks(made_groups, RANKS)):
        late = 0 if rank else 1
        assert states == [(ALIGNED, 0), (ALIGNED, 0), (everything, late), (everything, late)]


def test_blocks_that_share_a_rank_are_made_by_separate_splits() -> None:
    blocks = [(0, 1), (2, 3), (1, 2), (4, 5), (3, 4)]
    assert split_into_disjoint(blocks) == [[(0, 1), (2, 3), (4, 5)], [(1, 2), (3, 4)]]
