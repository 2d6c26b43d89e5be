"""What docs/lead.md says to clients; tests/clients runs its programs."""

from __future__ import annotations

import re
from pathlib import Path

from tests.command import ROOT
from tests.documents.documents import programs
from tests.serving import LeadProcess

LEAD = ROOT / "docs" / "lead.md"


def _blocks(kind: str, holds: str) -> list[str]:
    """The blocks of code of this kind that have `holds`."""
    text = LEAD.read_text(encoding="utf-8")
    return [block for block in re.findall(rf"^```{kind}\n(.*?)^```", text, re.M | re.S) if holds in block]


def test_a_lead_says_what_is_quoted(demo_pair: tuple[Path, Path]) -> None:
    target, draft = demo_pair
    (block,) = _blocks("text", "listening")
    quoted = block.splitlines()
    quoted[0] = quoted[0].replace("model main, draft draft", f"model {target.stem}, draft {draft.stem}")
    with LeadProcess(target, "-md", draft, "-c", "8192") as lead:
        # At the usual port, the address for `duo chat` is left out.
        said = [line.removesuffix(f" {lead.url}").replace(str(lead.port), "5555") for line in lead.lines]
        assert said[-len(quoted) :] == quoted


def test_all_settings_have_the_address_of_a_lead() -> None:
    ((block,), url) = _blocks("text", "listening"), "://localhost:5555/v1"
    assert "://127.0.0.1:5555 " in block
    for key, holds in (("apiBase", "provider: openai"), ("api_base", "model_id: duo")):
        (settings,) = _blocks("yaml", holds)
        assert f"{key}: http{url}\n" in settings
    clients = [program for _, program in programs(LEAD)]
    assert len(clients) == 4
    assert all(re.search(rf'(base_url|api_base)="http{url}"', program) for program in clients)
    web = [*_blocks("text", "open-webui serve"), *_blocks("text", "docker run")]
    hosts = [re.findall(r"OPENAI_API_BASE_URL=http://(\S+):5555/v1 ", block) for block in web]
    assert hosts == [["127.0.0.1"], ["127.0.0.1"], ["host.docker.internal"]]
