"""The form of an answer: applied wherever a client puts a schema, or refused with the place where it belongs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import Anthropic
from llguidance import LLMatcher, LLTokenizer
from openai import OpenAI
from openai.types.responses import Response
from pydantic import BaseModel
from starlette.testclient import TestClient

from duo.llama.chat_template import ChatTemplate
from duo.llama.grammar import schema_grammar
from tests.chat_templates import HERMES
from tests.scripted import ScriptedSlot
from tests.serving import assert_error
from tests.unit.server.conftest import ASKED, CHAT, COMPLETIONS

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
APIS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a"},
    CHAT: {"messages": ASKED["messages"]},
    RESPONSES: {"input": "a"},
    MESSAGES: {"messages": ASKED["messages"], "max_tokens": 9},
}
SCHEMA = {"type": "object", "properties": {"ripe": {"type": "boolean"}}}
TEXT = json.dumps(SCHEMA)


def grammar_of(schema: Any) -> str:
    return schema_grammar(json.dumps(schema, separators=(",", ":")), "the schema")


def asked(client: TestClient, slot: ScriptedSlot, path: str, **fields: Any) -> str | None:
    """The grammar of the answer to a request with these fields."""
    answer = client.post(path, json=APIS[path] | fields)
    assert answer.status_code == 200, answer.text
    return slot.requests[-1].config.grammar


WRAPPED = {"name": "fruit", "strict": True, "schema": SCHEMA}
FORMS: tuple[dict[str, Any], ...] = (
    {"type": "json_schema", "json_schema": WRAPPED},
    {"type": "json_schema", "json_schema": SCHEMA},
    {"type": "json_schema", "schema": SCHEMA, "name": "fruit", "strict": "true"},
    {"type": "json_schema", "schema": WRAPPED},
    {"type": "json_schema", "schema": SCHEMA, "json_schema": {"name": "fruit"}},
    {"type": "json_schema", "schema": SCHEMA, "json_schema": None},
    {"type": "json_schema", "schema": SCHEMA, "json_schema": WRAPPED},
    {"type": "json_schema", "json_schema": {"name": "fruit", "schema": TEXT}},
    {"type": "json_object", "schema": SCHEMA},
    {"type": "json_object", "json_schema": WRAPPED},
    {"type": "json_schema", "json_schema": {"json_schema": WRAPPED}},
    {"type": None, **WRAPPED},
    {"json_schema": WRAPPED},
    {"schema": SCHEMA},
)
PLACES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "response_format": lambda form: {"response_format": form},
    "output_format": lambda form: {"output_format": form},
    "output_config.format": lambda form: {"output_config": {"effort": "low", "format": form}},
    "text.format": lambda form: {"text": {"verbosity": "low", "format": form}},
}
LAST = {RESPONSES: "text.format", MESSAGES: "output_config.format"}


@pytest.mark.parametrize("path", APIS)
def test_a_schema_in_any_place_of_a_format_is_applied(client: TestClient, slot: ScriptedSlot, path: str) -> None:
    for form in FORMS:
        assert asked(client, slot, path, **PLACES[LAST.get(path, "response_format")](form)) == grammar_of(SCHEMA), form
    itself = {"$ref": "#/$defs/fruit", "$defs": {"fruit": SCHEMA}}
    for place in PLACES.values():
        assert asked(client, slot, path, **place(itself)) == grammar_of(itself)
        assert asked(client, slot, path, **place(FORMS[0])) == grammar_of(SCHEMA)
        assert asked(client, slot, path, **place({"type": "json_object"})) == grammar_of({})
        for nothing in ({"type": "text"}, {}, None):
            assert asked(client, slot, path, **place(nothing)) is None


FIELDS: tuple[dict[str, Any], ...] = (
    {"json_schema": SCHEMA},
    {"json_schema": TEXT},
    {"json_schema": WRAPPED},
    {"json_schema": SCHEMA, "response_format": {"type": "json_object"}},  # llama-server's
    {"guided_json": SCHEMA, "response_format": FORMS[0]},
    {"guided_json": TEXT},
    {"structured_outputs": {"json": SCHEMA}},
    {"structured_outputs": {"json": TEXT, "regex": None, "disable_any_whitespace": True, "json_object": False}},
)


@pytest.mark.parametrize("path", APIS)
def test_schemas_in_fields_of_other_servers(client: TestClient, slot: ScriptedSlot, path: str) -> None:
    for fields in FIELDS:
        assert asked(client, slot, path, **fields) == grammar_of(SCHEMA), fields
    assert asked(client, slot, path, structured_outputs={"json_object": True}) == grammar_of({})
    assert asked(client, slot, path, json_schema={}) == grammar_of({})
    assert asked(client, slot, path, json_schema="", grammar="", guided_json="", regex="") is None


def takes(grammar: str | None, text: str) -> bool:
    """Whether Lark allows this text."""
    tokenizer = LLTokenizer("byte")
    matcher = LLMatcher(tokenizer, grammar or "", log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


CHOICES = ["pear", "pears of", 'a "fig"', "b\\n", "\n", "é\u2028", "/", "{", "%json {}"]
REGEXES = {
    r"\d{3}-\d{4}": ("555-1234", "555-123"),
    r"^(yes|no)$": ("yes", "yes!"),
    r"https?://\w+/\/x": ("http://a//x", "http:/a//x"),
    "a\nb": ("a\nb", "a\\nb"),
    r"[/]+\\/": ("//\\/", "//\\"),
    "é+": ("éé", "e"),
}
LARK = '?start: select\n// a comment with ::=\nselect: "SELECT " NAME ("," NAME)*\nNAME: /[a-z]+/\n'


@pytest.mark.parametrize("path", APIS)
def test_choices_expressions_and_grammars(client: TestClient, slot: ScriptedSlot, path: str) -> None:
    def both(name: str, value: Any) -> str | None:
        found = asked(client, slot, path, **{f"guided_{name}": value})
        assert asked(client, slot, path, structured_outputs={name: value}) == found
        return found

    assert takes(both("choice", [""]), "")
    choices = both("choice", CHOICES)
    assert all(takes(choices, one) for one in CHOICES)
    assert not any(takes(choices, one) for one in ("", "pea", "pears", "pears ", '"pear"', "b\n"))
    for expression, (right, wrong) in REGEXES.items():
        assert takes(both("regex", expression), right)
        assert not takes(both("regex", expression), wrong)
    assert takes(asked(client, slot, path, regex=r"^\d/$"), "1/")
    assert asked(client, slot, path, ebnf='root ::= "a"') == 'root ::= "a"'
    assert both("grammar", 'root ::= "a"') == 'root ::= "a"'
    assert takes(both("grammar", LARK), "SELECT a,b")
    marked = "%llguidance {}\n" + LARK
    assert both("grammar", marked) == marked


REFUSED: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "json_schema"}, "{0} has no schema: send one as {1}"),
    ({"type": "json_schema", "json_schema": None}, "{0} has no schema: send one as {1}"),
    ({"type": "json_schema", "json_schema": {}}, "{0} has no schema: send one as {1}"),
    (
        {"type": "json_schema", "json_schema": {"name": "fruit", "strict": True}},
        "{0} has no schema: send one as {1}",
    ),
    ({"type": "json_schema", "json_schema": {"schema": None}}, "{0} has no schema: send one as {1}"),
    (
        {"type": "json_schema", "name": "fruit", "properties": SCHEMA["properties"]},
        "{0} has no schema: send one as {1}",
    ),
    ({"type": "json_schema", "json_schema": {"schema": "{"}}, "{0} has a schema that is not valid JSON: "),
    ({"type": "json_schema", "json_schema": {"schema": [SCHEMA]}}, "{0} has a schema that is not a JSON object"),
    (
        {"type": "json_schema", "schema": SCHEMA, "json_schema": {"schema": {"type": "null"}}},
        "{0} has two schemas: send one as {1}",
    ),
    ({"type": "text", "schema": SCHEMA}, "{0} has a schema, but is of type text: send it with"),
    (SCHEMA, "unknown {0} 'object' (available: text, json_object, json_schema): send a schema as {1}"),
    ({"type": "grammar", "grammar": 'root ::= "a"'}, "unknown {0} 'grammar'"),
    ({"type": "regex", "value": "a"}, "unknown {0} 'regex'"),
    ({"type": {}}, "unknown {0} '{{}}'"),
)


@pytest.mark.parametrize("path", APIS)
def test_a_schema_that_is_not_found_is_refused_with_its_place(client: TestClient, path: str) -> None:
    for place, fields in PLACES.items():
        belongs = f"{place}.{'json_schema.' if place == 'response_format' else ''}schema"
        for form, said in REFUSED:
            answer = client.post(path, json=APIS[path] | fields(form))
            assert answer.status_code == 400, (form, answer.text)
            assert answer.json()["error"]["message"].startswith(said.format(place, belongs)), form


@pytest.mark.parametrize("path", APIS)
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"json_schema": SCHEMA, "grammar": 'root ::= "a"'}, "json_schema and grammar exclude each other: send one"),
        ({"json_schema": SCHEMA, "guided_json": {"type": "null"}}, "json_schema and guided_json exclude each other"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format and guided_regex exclude"),
        ({"structured_outputs": {"choice": ["b"], "regex": "a"}}, "structured_outputs.regex and structured_outputs.ch"),
        ({"structured_outputs": {}}, "structured_outputs has none of json, regex, choice, grammar, json_object"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs has none of json, regex, choice, gram"),
        ({"guided_choice": []}, "invalid request: Expected `array` of length >= 1 - at `$.guided_choice`"),
        ({"guided_json": {"name": "fruit"}}, "guided_json has no schema"),
        ({"json_schema": {"name": "x", "strict": True}}, "json_schema has no schema: send one as json_schema"),
        ({"json_schema": "{"}, "json_schema has a schema that is not valid JSON"),
        ({"guided_json": "[]"}, "guided_json has a schema that is not a JSON object"),
        ({"guided_json": SCHEMA | {"type": "x"}}, "the schema is an invalid or unsupported JSON schema"),
        ({"grammar": " "}, "the grammar is invalid: it is empty"),
    ],
    ids=str,
)
def test_what_else_is_refused(client: TestClient, path: str, fields: dict[str, Any], said: str) -> None:
    answer = client.post(path, json=APIS[path] | fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(said)


def test_the_format_of_a_response_is_told(client: TestClient) -> None:
    form = {"type": "json_schema", "name": "fruit", "schema": SCHEMA, "strict": True}
    answer = client.post(RESPONSES, json={"input": "a", "text": {"format": form}}).json()
    assert Response.model_validate(answer).text.model_dump(by_alias=True)["format"]["schema"] == SCHEMA  # type: ignore[union-attr]
    assert answer["text"] == {"format": form}
    assert client.post(RESPONSES, json={"input": "a"}).json()["text"] == {"format": {"type": "text"}}


# Requests as clients write them, for a fruit: an apple or a pear, which is ripe or not

RECORDED = [
    json.loads(line) for line in Path(__file__).with_name("recorded_forms.jsonl").read_text("utf-8").splitlines()
]


@pytest.mark.parametrize("recorded", RECORDED, ids=[one["client"] for one in RECORDED])
def test_recorded_requests(client: TestClient, slot: ScriptedSlot, recorded: dict[str, Any]) -> None:
    slot.n_ctx = 4096
    answer = client.post(recorded["path"], json=recorded["body"] | {"stream": False})
    assert answer.status_code == 200, answer.text
    assert "x-duo-warning" not in answer.headers or "unknown model" in answer.headers["x-duo-warning"]
    grammar = slot.requests[-1].config.grammar
    is_any = {"type": "json_object"} in recorded["body"].values()
    assert takes(grammar, "{}") == is_any
    fruits = {name: (json.dumps({"name": name, "ripe": True}), name) for name in ("pear", "fig")}
    assert any(takes(grammar, text) for text in fruits["pear"])
    assert is_any or not any(takes(grammar, text) for text in fruits["fig"])


# The schemas of tools

NAMES = ("parameters", "input_schema", "inputSchema")  # OpenAI's, Anthropic's, MCP's
TOOL = {"type": "object", "properties": {"ripeness": {"type": "integer"}}, "required": ["ripeness"]}


def tools_of(path: str, **schemas: Any) -> list[dict[str, Any]]:
    flat: dict[str, Any] = {"name": "f", "description": "d", **schemas}
    match path:
        case "/v1/messages":
            return [flat]
        case "/v1/responses":
            return [{"type": "function", **flat}]
    return [{"type": "function", "function": flat}]


@pytest.fixture
def _hermes(slot: ScriptedSlot) -> None:
    slot.target.chat_template = slot.target.tool_template = ChatTemplate(HERMES)


@pytest.mark.usefixtures("_hermes")
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_the_schema_of_a_tool_by_any_name(client: TestClient, slot: ScriptedSlot, path: str) -> None:
    expected = asked(client, slot, path, tools=tools_of(path, **{NAMES[path == MESSAGES]: TOOL}))
    assert "ripeness" in (expected or "")
    for name in NAMES:
        assert asked(client, slot, path, tools=tools_of(path, **{name: TOOL})) == expected
        assert "ripeness" in slot.target.spelling(slot.requests[-1].prompt).decode(), "the model reads it, too"
    answer = client.post(path, json=APIS[path] | {"tools": tools_of(path, parameters=TOOL, input_schema=SCHEMA)})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "tools: 'f' has two schemas: send one as parameters or input_schema"


@pytest.mark.usefixtures("_hermes")
def test_the_schema_of_a_tool_beside_its_function(client: TestClient, slot: ScriptedSlot) -> None:
    expected = asked(client, slot, CHAT, tools=tools_of(CHAT, parameters=TOOL))
    for name in NAMES:
        beside = {"type": "function", "function": {"name": "f", "description": "d"}, name: TOOL}
        assert asked(client, slot, CHAT, tools=[beside]) == expected
    flat = {"type": "function", "name": "f", "parameters": TOOL}
    assert_error(client.post(CHAT, json=APIS[CHAT] | {"tools": [flat]}), 400, "function")
    assert "ripeness" in (asked(client, slot, MESSAGES, tools=[flat]) or ""), "of the Responses API"


@pytest.mark.usefixtures("_hermes")
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_form_beside_tools(client: TestClient, slot: ScriptedSlot, path: str) -> None:
    tools = tools_of(path, **{NAMES[path == MESSAGES]: TOOL})
    expected = asked(client, slot, path, tools=tools, json_schema=SCHEMA)
    assert "ripe" in (expected or "")
    assert asked(client, slot, path, tools=tools, structured_outputs={"json": SCHEMA}) == expected
    for name in ("grammar", "guided_regex"):
        answer = client.post(path, json=APIS[path] | {"tools": tools, name: 'root ::= "a"'})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == f"{name} and tools exclude each other: use response_format"


# Requests as the SDKs write them


class Fruit(BaseModel):
    ripe: bool


@pytest.fixture
def http(client: TestClient) -> httpx2.Client:
    """Passes what an SDK sends to the lead."""

    def send(request: httpx2.Request) -> httpx2.Response:
        headers = {name: value for name, value in request.headers.items() if name != "host"}
        answer = client.request(request.method, request.url.path, content=request.content, headers=headers)
        return httpx2.Response(answer.status_code, content=answer.content, headers=answer.headers)

    return httpx2.Client(transport=httpx2.MockTransport(send))


def test_the_forms_of_openai(http: httpx2.Client, slot: ScriptedSlot) -> None:
    sdk = OpenAI(base_url="http://localhost/v1", api_key="none", http_client=http, max_retries=0)
    slot.text = '{"ripe": true}'
    common: dict[str, Any] = {"model": "scripted", "messages": ASKED["messages"]}
    parsed = sdk.chat.completions.parse(**common, response_format=Fruit)
    expected = slot.requests[-1].config.grammar
    assert "ripe" in (expected or "")
    assert parsed.choices[0].message.parsed == Fruit(ripe=True)
    assert sdk.responses.parse(model="scripted", input="a", text_format=Fruit).output_parsed == Fruit(ripe=True)
    for fields in (
        {"guided_json": Fruit.model_json_schema()},
        {"structured_outputs": {"json": Fruit.model_json_schema()}},
    ):
        sdk.chat.completions.create(**common, extra_body=fields)
        assert "ripe" in (slot.requests[-1].config.grammar or "")
    sdk.completions.create(model="scripted", prompt="a", extra_body={"guided_choice": ["apple", "pear"]})
    assert takes(slot.requests[-1].config.grammar, "pear")


def test_the_forms_of_anthropic(http: httpx2.Client, slot: ScriptedSlot) -> None:
    sdk = Anthropic(base_url="http://localhost", api_key="none", http_client=http, max_retries=0)
    slot.text = '{"ripe": true}'
    common: dict[str, Any] = {"model": "claude-sonnet-5", "messages": ASKED["messages"], "max_tokens": 64}
    parsed = sdk.messages.parse(**common, output_format=Fruit)
    assert parsed.parsed_output == Fruit(ripe=True)
    form = {"type": "json_schema", "schema": Fruit.model_json_schema()}
    grammars = [slot.requests[-1].config.grammar]
    sdk.beta.messages.parse(**common, output_format=Fruit)
    grammars.append(slot.requests[-1].config.grammar)
    sdk.messages.create(**common, extra_body={"output_format": form})  # earlier releases
    grammars.append(slot.requests[-1].config.grammar)
    assert all("ripe" in (grammar or "") for grammar in grammars)
