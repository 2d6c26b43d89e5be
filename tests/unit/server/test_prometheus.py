"""The metrics of a lead, as Prometheus reads them."""

from __future__ import annotations

from starlette.testclient import TestClient

from duo.server.lead_server import Lead
from tests.scripted import N_STEP, TEXT
from tests.unit.server.conftest import metrics_of


def test_a_text_is_counted(client: TestClient) -> None:
    for n in (9, 9, -1):
        client.post("/v1/completions", json={"prompt": "abcdef", "max_tokens": n})
    found = metrics_of(client)
    n_end = len(TEXT) + 1
    assert {name: value for name, value in found.items() if "seconds" not in name} == {
        "llamacpp:prompt_tokens_total": 7 + 1 + 1,
        "duo:prompt_tokens_cached_total": 6 + 6,
        "llamacpp:tokens_predicted_total": 9 + 9 + n_end,
        "llamacpp:n_decode_total": 2 + 2 + 11,
        "spec_decode_num_drafts_total": 3 + 3 + 10,
        "spec_decode_num_draft_tokens_total": 6 + 6 + 20,
        "spec_decode_num_accepted_tokens_total": 6 + 6 + 20,
        "spec_decode_num_accepted_tokens_per_pos_total 0": 3 + 3 + 10,
        "spec_decode_num_accepted_tokens_per_pos_total 1": 3 + 3 + 10,
        "duo:generations_total token limit": 2,
        "duo:generations_total end of text": 1,
    }
    assert n_end // N_STEP == 10
    assert sum("seconds" in name for name in found) == 4, "times and rates of prompts and texts"


def test_remote_drafts_are_counted(lead: Lead, client: TestClient) -> None:
    for what, n in (("joined", 5), ("stalled", 2), ("stale", 9), ("dropped: left", 3), ("refused: token", 4)):
        for _ in range(n):
            lead.drafts.count(what)
    assert metrics_of(client) == {
        "duo:worker_joins_total": 5,
        "duo:worker_stalls_total": 2,
        "duo:stale_candidates_total": 9,
        "duo:worker_drops_total left": 3,
        "duo:worker_refusals_total token": 4,
    }
