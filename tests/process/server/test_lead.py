"""duo lead as a process: from loading to its end, what it shows, and what requests leave for others."""

import json
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.command import SLOW_TARGET
from tests.serving import PATIENCE_S, LeadProcess, assert_error, free_port, wait_until

CONTEXT = ("-c", "512")
LONG: dict[str, Any] = {"prompt": "a", "max_tokens": -1, "ignore_eos": True}


def get(lead: LeadProcess, path: str, **headers: str) -> httpx.Response:
    return httpx.get(lead.url + path, headers=headers, timeout=PATIENCE_S)


def streamed(lead: LeadProcess, asked: dict[str, Any]) -> AbstractContextManager[httpx.Response]:
    return httpx.stream("POST", f"{lead.url}/v1/completions", json=asked | {"stream": True}, timeout=PATIENCE_S)


@pytest.fixture(scope="session")
def lead(demo_pair: tuple[Path, Path]) -> Iterator[LeadProcess]:
    target, draft = demo_pair
    with LeadProcess(target, "-md", draft, "-td", "1", "-c", "512", "--exact", "--queue", "8") as lead:
        yield lead
        assert lead.process.poll() is None, lead.lines[-5:]
        odd = [line for line in lead.lines if not line.startswith(("duo: ", "prompt: ", "tokens: "))]
        assert not odd, odd[:5]
        assert lead.stdout == b"", "texts are shown only where asked for"


# From loading to its end


def test_a_lead_that_is_loading_answers_503_until_ctrl_c(demo_pair: tuple[Path, Path]) -> None:
    port, endless = free_port(), "from tests.child import endless_loading; endless_loading()"
    with LeadProcess(demo_pair[1], "--port", str(port), before=endless, wait=False) as lead:
        lead.port = port
        wait_until(lambda: listens(port))
        for answer in (get(lead, "/health"), lead.post("/v1/completions", prompt="a")):
            assert_error(answer, 503, "loading")
            assert answer.headers["Retry-After"] == "1"
        assert get(lead, "/metrics").status_code == 200
        lead.wait_for("^loading begins$")  # before, Ctrl-C ends the command as it ends any other Python program
        lead.send(signal.SIGINT)
        assert lead.finish() == 130
        assert lead.lines == ["loading begins", "duo: interrupted while loading"]


# The warm-up begins, and goes on when it has been aborted.
ENDLESS_WARM_UP = """
import sys, time
from duo.engine import model_pair
warm_up = model_pair.warm_up
def wait_and_warm_up(context, *more):
    print("warms up", file=sys.stderr, flush=True)
    while not context._aborted:
        time.sleep(0.01)
    return warm_up(context, *more)
model_pair.warm_up = wait_and_warm_up
"""


def test_a_signal_during_the_warm_up_ends_a_lead(demo_pair: tuple[Path, Path]) -> None:
    with LeadProcess(demo_pair[1], "--port", str(free_port()), before=ENDLESS_WARM_UP, wait=False) as lead:
        lead.wait_for("^warms up$")
        lead.send(signal.SIGTERM)
        assert lead.finish() == 128 + signal.SIGTERM
        assert not any("error" in line or "listening" in line for line in lead.lines)


def listens(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def test_a_signal_ends_streams_and_waiting_requests(demo_pair: tuple[Path, Path]) -> None:
    options = (*CONTEXT, "-np", "1", "--lookup", "off")
    with LeadProcess(demo_pair[1], *options, before=SLOW_TARGET) as lead, ThreadPoolExecutor() as pool:
        with streamed(lead, LONG) as response:
            lines = response.iter_lines()
            assert "choices" in next(lines)
            waiting = pool.submit(lead.post, "/v1/completions", **LONG)
            wait_until(lambda: lead.metric("llamacpp:requests_deferred") == 1)
            lead.send(signal.SIGINT)
            *_, told, done = (line for line in lines if line)
            assert ('"message":"the server is stopping","type":"unavailable_error"' in told, done) == (
                True,
                "data: [DONE]",
            )
        assert_error(waiting.result(), 503, "^the server is stopping$")
        assert lead.finish() == 0


# What it shows

PROMPT, TEXT = "quetzal zanzibar", "marmalade xylophone"


def ask_everything(lead: LeadProcess) -> None:
    """Whatever could be a reason to show prompt or text."""
    grammar = f'root ::= "{TEXT}"'
    assert lead.write(PROMPT, 32, grammar=grammar) == TEXT
    assert lead.stream(PROMPT, 32, grammar=grammar).finish() == TEXT
    messages = [{"role": role, "content": said} for role, said in (("user", PROMPT), ("assistant", TEXT))]
    lead.post("/v1/chat/completions", messages=messages, max_tokens=8)
    lead.post("/tokenize", content=PROMPT)
    wrongs: list[dict[str, Any]] = [
        {"model": PROMPT, "temperature": -1},
        {"stop": [TEXT], "temperature": TEXT},
        {"prompt": PROMPT * 500},
        {"grammar": f'root ::= "{TEXT}" none'},
        {"json_schema": {"type": TEXT}},
    ]
    for wrong in wrongs:
        assert lead.post("/v1/completions", **{"prompt": PROMPT, **wrong}).status_code == 400
    get(lead, f"/{PROMPT}".replace(" ", "%20"))


@pytest.mark.parametrize("options", [("--color", "always"), ("--print", "accepted")])
def test_prompts_and_texts_are_shown_only_where_asked_for(
    demo_pair: tuple[Path, Path], options: tuple[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "duo.log"
    with LeadProcess(demo_pair[1], *CONTEXT, *options, "-v", "--log-file", log) as lead:
        ask_everything(lead)
        lead.send(signal.SIGTERM)
        assert lead.finish() == 0
    said, shown = "\n".join(lead.lines) + log.read_text(encoding="utf-8"), lead.stdout.decode()
    assert "tokens: " in said
    assert not any(word in said for word in (*PROMPT.split(), *TEXT.split()))
    assert PROMPT not in shown
    assert shown.startswith(TEXT * 2) if "--print" in options else not shown


# What requests leave behind. Clients: see tests/clients.

PARIS = "The capital of France is"
FRUIT = "Name a fruit."


def answer(lead: LeadProcess, *said: str, **more: Any) -> tuple[str, dict[str, Any]]:
    """The text of an answer in a chat that the user begins, and its usage."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(said)]
    found = lead.post("/v1/chat/completions", messages=messages, **{"max_tokens": 24} | more).json()
    return found["choices"][0]["message"]["content"], found["usage"]


def test_a_second_turn_is_read_from_the_cache(lead: LeadProcess) -> None:
    first, usage = answer(lead, FRUIT)
    found = []
    for more in ({}, {}, {"cache_prompt": False}):
        found.append(answer(lead, FRUIT, first, "Another one, please.", **more))
        lead.write("1, 2, 3,", 2)  # which the first conversation is kept beside
    (one, n_one), (two, n_two), (again, none) = found
    assert n_one["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"]
    assert n_two["prompt_tokens_details"]["cached_tokens"] >= n_one["prompt_tokens"] - 1
    assert none["prompt_tokens_details"]["cached_tokens"] == 0
    assert one == two == again


def test_a_slot_of_ones_own(lead: LeadProcess) -> None:
    """A prompt in another slot has nothing in common with the texts there."""
    prompt = "Red, green, blue, " * 20
    fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 2, "temperature": 0}
    answers = [lead.post("/v1/completions", **fields, id_slot=slot).json() for slot in (3, 3, 2, 3, -1)]
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
    assert [n > 40 for n in cached] == [False, True, False, True, True]
    assert len({one["choices"][0]["text"] for one in answers}) == 1
    kept = [slot["n_prompt_tokens"] for slot in get(lead, "/slots").json()]
    assert kept[2] > 40
    assert kept[3] > 40
    assert lead.post("/slots/2?action=erase").json()["n_erased"] == kept[2]
    assert get(lead, "/slots").json()[2]["n_prompt_tokens"] == 0
    assert_error(lead.post("/v1/completions", prompt="a", id_slot=4), 400, "id_slot: there is no slot 4, only 0 to 3")


def test_slots_tell_what_is_being_written(demo_pair: tuple[Path, Path]) -> None:
    prompts = ("Once upon a time", "1, 2, 3,")
    with LeadProcess(demo_pair[1], "-c", "2048", "--lookup", "off", before=SLOW_TARGET) as lead:
        streams = [lead.stream(prompt, 300, duo={}) for prompt in prompts]
        for stream in streams:
            stream.wait_for_pieces(4)
        found = []
        for _ in range(2):
            n_pieces = [len(stream.events) for stream in streams]
            found.append({slot["id"]: slot for slot in get(lead, "/slots").json() if slot["is_processing"]})
            assert [len(slots) for slots in found] == [2] * len(found), "both are being written"
            for stream, n in zip(streams, n_pieces, strict=True):
                stream.wait_for_pieces(n + 8)
        one, other = found
        assert one.keys() == other.keys()
        assert all(other[i]["n_prompt_tokens"] > slot["n_prompt_tokens"] > 4 for i, slot in one.items())
        for stream in streams:
            stream.finish()
        wait_until(lambda: lead.metric("llamacpp:requests_processing") == 0)
        ended = get(lead, "/slots").json()
        assert not any(slot["is_processing"] for slot in ended)
        assert all(slot["n_ctx"] == 2048 for slot in ended)
        assert [slot["n_prompt_tokens"] > 300 for slot in ended].count(True) == 2
        assert {1 < stream.events[-1]["duo"]["texts"] <= 2 for stream in streams} == {True}


def test_a_schema_holds_for_one_request(lead: LeadProcess) -> None:
    expected = answer(lead, FRUIT)[0]
    schema = {"type": "object", "properties": {"fruit": {"enum": ["apple", "pear"]}}, "required": ["fruit"]}
    form = {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True, "schema": schema}}
    text, _ = answer(lead, FRUIT, max_tokens=48, temperature=1, seed=3, response_format=form)
    assert json.loads(text)["fruit"] in ("apple", "pear")
    for fields in ({"choice": ["apple", "pear"]}, {"regex": "apple|pear"}, {"grammar": 'start: "apple" | "pear"'}):
        assert answer(lead, FRUIT, max_tokens=48, structured_outputs=fields)[0] in ("apple", "pear")
    assert answer(lead, FRUIT)[0] == expected


ARRAY = {"type": "array", "items": {"type": "string"}, "minItems": 9999}
HOSTILE: list[dict[str, Any]] = [  # more: tests/process/llama/test_grammar.py, tests/attacks/test_requests.py
    {"json_schema": {"anyOf": [{"type": "string", "maxLength": 9999}] * 1000}},
    {"json_schema": {"properties": {f"p{i}": ARRAY for i in range(800)}}},
    {"grammar": 'root ::= "yes" a\na ::= b a "c" | "d"\nb ::= e\ne ::= "b" |', "max_tokens": 9},
    {"guided_regex": "((a{0,9999}){0,9999}){0,9999}"},
    {"guided_choice": [f"{i}" * 9 for i in range(5000)]},
]


@pytest.mark.parametrize("fields", HOSTILE, ids=range(len(HOSTILE)))
def test_a_request_that_could_exhaust_llama_cpp(lead: LeadProcess, fields: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"prompt": "a", "max_tokens": 1} | fields
    assert lead.post("/v1/completions", **asked).status_code in (200, 400)
    assert lead.write(PARIS, 2, grammar='root ::= "Ro" "me"') == "Rome"


def test_each_of_many_clients_gets_its_own_text_or_503(lead: LeadProcess) -> None:
    """While a text is being written whose client disconnects."""

    def ask(i: int) -> httpx.Response:
        return lead.post("/v1/completions", prompt="a", grammar=f'root ::= "client {i}"')

    with ThreadPoolExecutor(40) as pool:
        with streamed(lead, LONG) as stream:
            next(stream.iter_lines())
            answers = [pool.submit(ask, i) for i in range(40)]
            wait_until(lambda: any(one.done() for one in answers))  # the queue is full
        found = dict(enumerate(one.result() for one in answers))
    texts = {i: one.json()["choices"][0]["text"] for i, one in found.items() if one.status_code == 200}
    refused = [one for i, one in found.items() if i not in texts]
    assert {(one.status_code, one.headers["Retry-After"]) for one in refused} == {(503, "1")}
    assert "the queue is full (8 requests)" in refused[0].text
    assert texts == {i: f"client {i}" for i in texts}
    assert len(texts) >= 8


def ask_ten(lead: LeadProcess, client: httpx.Client) -> None:
    """One of each kind."""
    short = {"prompt": "The cat", "max_tokens": 1}
    for path, fields, status in (
        ("/v1/completions", short, 200),
        ("/v1/completions", short | {"stream": True}, 200),
        ("/v1/completions", short | {"temperature": 1, "json_schema": {"type": "object"}}, 200),
        ("/v1/completions", short | {"grammar": "root ::= none"}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}, 200),
        ("/tokenize", {"content": "a b c"}, 200),
        ("/v1/nothing", {}, 404),
    ):
        assert client.post(lead.url + path, json=fields).status_code == status
    assert client.get(f"{lead.url}/metrics").status_code == 200
    with client.stream("POST", f"{lead.url}/v1/completions", json=LONG | {"stream": True}) as response:
        next(response.iter_lines())  # and leaves


def test_many_requests_leave_nothing_behind(lead: LeadProcess) -> None:
    with httpx.Client(timeout=PATIENCE_S) as client:
        memory, n_files = [], []
        for _ in range(4):
            for _ in range(4):
                ask_ten(lead, client)
            for slot in range(4):
                client.post(f"{lead.url}/slots/{slot}?action=erase")
            memory.append(lead.facts.memory_info().rss)
            n_files.append(lead.facts.num_fds())
        assert min(after - before for before, after in pairwise(memory)) < 2e6, "it does not grow each time"
    wait_until(lambda: lead.facts.num_fds() <= n_files[0])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits another process")
def test_more_connections_than_files(lead: LeadProcess) -> None:
    limit = resource.prlimit(lead.process.pid, resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        stack.callback(resource.prlimit, lead.process.pid, resource.RLIMIT_NOFILE, limit)
        n = lead.facts.num_fds() + 20
        resource.prlimit(lead.process.pid, resource.RLIMIT_NOFILE, (n, limit[1]))
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", lead.port), PATIENCE_S))
        wait_until(lambda: lead.facts.num_fds() >= n)
    assert lead.write("The cat", 1)


def test_a_request_says_how_it_is_drafted(lead: LeadProcess) -> None:
    def ask(headers: dict[str, str] | None = None, **fields: Any) -> tuple[str, dict[str, Any] | None]:
        asked = {"prompt": "1, 2, 3, 4,", "max_tokens": 8, "ignore_eos": True, "temperature": 0, **fields}
        found = lead.post("/v1/completions", headers, **asked).json()
        return found["choices"][0]["text"], found.get("duo")

    text, used = ask()
    assert used is None
    off = ask(duo={"schedule": "off"})
    assert off == ask({"X-Duo-Schedule": "plain"}) == (text, {"tokens_by_schedule": {"off": 7}, "texts": 1.0})
    sync, used = ask(duo={"schedule": "sync", "lookup": False, "n_draft": 2})
    assert used is not None
    assert sync == text
    assert [*used] == ["tokens_by_schedule", "draft_n_accepted", "texts"]
    assert used["tokens_by_schedule"]["sync"] >= 5
    for fields in ({"speculative.n_max": 0}, {"duo": {"n_draft": 0}}):
        assert ask(**fields) == off
    refused = lead.post("/v1/completions", prompt="a", duo={"schedule": "fast"})
    assert_error(refused, 400, "unknown schedule 'fast'")


def test_the_choices_of_an_answer_are_written_together(demo_pair: tuple[Path, Path]) -> None:
    asked: dict[str, Any] = {"prompt": "Once upon a time, there was a", "max_tokens": 24, "ignore_eos": True, "n": 4}
    with LeadProcess(demo_pair[0], "-c", "512", "--lookup", "off") as lead:
        with streamed(lead, asked | {"stream_options": {"include_usage": True}}) as stream:
            *events, last = stream.read().decode().strip().split("\n\n")
        chunks = [json.loads(one.removeprefix("data: ")) for one in events]
        assert (last, chunks[-1]["usage"]["completion_tokens"]) == ("data: [DONE]", 4 * 24)
        order = [one["index"] for chunk in chunks for one in chunk["choices"]]
        assert set(order) == {0, 1, 2, 3}
        assert order != sorted(order), "as they come"
        n_streamed = lead.metric("llamacpp:n_decode_total")
        assert n_streamed < 3 * 24
        choices = lead.post("/v1/completions", **asked).json()["choices"]
        assert [one["index"] for one in choices] == [0, 1, 2, 3]
        assert lead.metric("llamacpp:n_decode_total") - n_streamed < 3 * 24
        # More than are written at once, which end at different places:
        more = asked | {"n": 7, "temperature": 1, "seed": 3, "stop": ["."], "max_tokens": 40, "logprobs": 0}
        with streamed(lead, more | {"stream_options": {"include_usage": True}}) as stream:
            *events, last = stream.read().decode().strip().split("\n\n")
        chunks = [json.loads(one.removeprefix("data: ")) for one in events]
        assert (last, chunks[-1]["choices"]) == ("data: [DONE]", [])
        found = [one for chunk in chunks for one in chunk["choices"]]
        ends = [one["index"] for one in found if one["finish_reason"]]
        assert sorted(ends) == list(range(7))
        assert {one["finish_reason"] for one in found} >= {"stop", None}
        n_tokens = Counter(one["index"] for one in found for _ in (one["logprobs"] or {}).get("tokens", ()))
        assert len(set(n_tokens.values())) > 1
        assert chunks[-1]["usage"]["completion_tokens"] >= n_tokens.total() > 7
        # The client leaves while several are being written:
        with streamed(lead, asked | {"max_tokens": 400}) as stream:
            seen = set[int]()
            for line in stream.iter_lines():
                seen |= {json.loads(line[6:])["choices"][0]["index"]} if line.startswith("data: {") else set()
                if len(seen) > 1:
                    break
        wait_until(lambda: lead.metric("llamacpp:requests_processing") == 0)
        assert lead.metric("llamacpp:requests_deferred") == 0


def test_a_conversation_survives_a_restart(demo_pair: tuple[Path, Path], tmp_path: Path) -> None:
    begun = "Once upon a time, in a small village by the sea, there lived a fisherman. " * 4
    texts = []
    for action in ("save", "restore"):
        with LeadProcess(demo_pair[1], *CONTEXT, "--lookup", "off", "--slot-save-path", tmp_path) as lead:
            if action == "save":
                lead.write(begun, 2)
            found = lead.post(f"/slots/0?action={action}", filename="story.kv").json()
            assert found.get("n_saved", found.get("n_restored")) > 60
            answer = lead.post("/v1/completions", prompt=begun + "One day", max_tokens=8, temperature=0).json()
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 60
            texts.append(answer["choices"][0]["text"])
    assert texts[0] == texts[1]


def test_what_cannot_be_done_with_a_slot(lead: LeadProcess) -> None:
    for action, said in (("9?action=erase", "no slot 9"), ("0?action=copy", "unknown action")):
        assert_error(lead.post(f"/slots/{action}"), 400, said)
