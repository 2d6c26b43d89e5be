"""What a client is told besides the answer: misspelt fields and other models."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from duo.server.api_error import WARNING_HEADER
from tests.serving import assert_error

HINT = 'unknown field "temprature": did you mean "temperature"?'
OTHER = "unknown model 'gpt\\xe9\\n': 'scripted' answers"
FIELDS: dict[str, Any] = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/apply-template"])
@pytest.mark.parametrize("stream", [True, False])
def test_misspelt_fields_and_other_models_are_told_in_a_header(client: TestClient, path: str, stream: bool) -> None:
    def told(**more: Any) -> str | None:
        answer = client.post(path, json=FIELDS | {"stream": stream} | more)
        assert answer.status_code == 200, answer.text
        return answer.headers.get(WARNING_HEADER)

    assert told(temprature=0.5) == HINT
    assert told(model="gpté\n") == OTHER
    assert told(model="gpté\n", temprature=0.5) == f"{HINT}; {OTHER}"
    assert len(told(model="gpt" * 9000) or "") < 200
    for name in (None, "", "default", "scripted"):
        assert told(model=name, cache_prompt=True) is None


def test_an_error_that_a_misspelt_field_may_explain_quotes_it(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json={"mesages": FIELDS["messages"]})
    assert_error(answer, 400, r'^messages must not be empty \(unknown field "mesages": did you mean "messages"\?\)$')
    wrong = {"prompt": "a", "temprature": 1, "json_schema": {"type": "x" * 9000}}
    assert_error(client.post("/v1/completions", json=wrong), 400, r"temperature\"\?\)$")
