"""Values of wrong types for the first functions of the package: one line each."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import seqplan


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: seqplan.explain(None), TypeError, "plan: None. Give a Plan"),
        (lambda: seqplan.digest("x"), TypeError, "plan: 'x'. Give a Plan"),
        (lambda: seqplan.to_json(None), TypeError, "plan: None. Give a Plan"),
        (lambda: seqplan.from_json(None), TypeError, "text: None. Give the JSON of a plan"),
        (lambda: seqplan.construct_plan([9], None), TypeError, "pipelines: None. Give a mapping"),
        (lambda: seqplan.find_profile(None), TypeError, "profile: None. Give its name or file"),
        (lambda: seqplan.read_lengths(np.array([1, 2])), TypeError, "sources: array([1, 2]). Give"),
        (lambda: seqplan.read_lengths([1]), TypeError, "sources: [1]. Give a file, a folder"),
        (lambda: seqplan.choose_plan_shapes([None], 2), TypeError, "plan: None. Give a Plan"),
        (lambda: seqplan.Client(3), TypeError, "server: 3. Give its address"),
        (lambda: seqplan.Client("http://a:1", token=3), TypeError, "token: is no text. Give"),
        (lambda: seqplan.Client("http://a:1", timeout_s=0), ValueError, "timeout_s: 0. Give more"),
    ],
)
def test_wrong_types_are_rejected_by_one_line(
    call: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)) as rejected:
        call()
    assert "\n" not in str(rejected.value)
