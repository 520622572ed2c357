"""VeOmni's dynamic batches by cost, by the interface of its release 0.1.12."""

import pickle
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from seqplan import Cost
from seqplan.integrations import veomni
from seqplan.integrations.versions import UnsupportedVersion

COST = Cost(1e-3, 1.0, 60.0)


def test_samples_count_as_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(count_mode: str) -> Any:
        return count_mode

    module: Any = ModuleType("veomni.data.data_loader")
    module.get_length_fn_by_count_mode = theirs
    monkeypatch.setitem(sys.modules, "veomni.data.data_loader", module)
    for _ in range(2):
        veomni.install(COST, 1000)
    assert module.get_length_fn_by_count_mode("total") == "total"
    assert module.get_length_fn_by_count_mode.host_function is theirs
    count = pickle.loads(pickle.dumps(module.get_length_fn_by_count_mode("effective")))
    samples = [{"attention_mask": np.ones(length)} for length in (1000, 500, 1)]
    assert [count(sample) for sample in samples] == [1000, 375, 1]
    assert count(samples) == 1376


def test_longest_sequence_of_no_tokens_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"longest: 0\. Give max_seq_len, tokens of 1 or more"):
        veomni.install(COST, 0)


def test_absent_veomni_is_named() -> None:
    with pytest.raises(UnsupportedVersion, match="has no get_length_fn_by_count_mode in veomni"):
        veomni.install(COST, 8)
