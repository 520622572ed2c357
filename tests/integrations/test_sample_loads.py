"""Settings of work before the language model that cannot be: one line each."""

import pytest

from seqplan.integrations.sample_loads import VARIABLE, SampleLoad


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{bad", "Expecting property name"),
        ('{"a": {}, "a": {}}', "field 'a' is written twice. Remove one"),
        ("[1]", r"\[1\]\. Give \{name"),
        ('{"vision": {"column": "x"}}', "vision: .* Give column and cost"),
        ('{"vision": {"column": "x", "cost": 5}}', r"vision: cost 5\. Give \[a, b, c\]"),
        ('{"vision": {"column": "x", "cost": ["a", 1, 2]}}', r"vision: cost .*Give \[a, b, c\]"),
        (
            '{"vision": {"column": "x", "cost": [0, 1, 0], "capacity": -4}}',
            "vision: capacity -4. Give a number of tokens",
        ),
    ],
)
def test_loads_that_cannot_be(text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(ValueError, match=rf"^{VARIABLE}: {message}"):
        SampleLoad.list_from_environment()
