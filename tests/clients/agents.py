"""Agents from npm with a lead whose model is scripted: each reads a file, edits it, runs a command, and says so.

    npm install --prefix FOLDER @openai/codex @anthropic-ai/claude-code
    python -m tests.clients.agents FOLDER/node_modules/.bin

The environment and the settings are those of docs/lead.md.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from duo.engine.request import Request
from duo.llama.chat_template import ChatTemplate
from duo.server.lead_server import Lead
from tests.chat_templates import HERMES
from tests.scripted import scripted_engine

ASKED = "Replace colour by color in notes.txt and count its lines."
BEFORE, AFTER, DONE = "the colour of the sea\nis blue\n", "the color of the sea\nis blue\n", "Done: it is color now."
CONFIG = """model = "duo"
model_provider = "duo"
[model_providers.duo]
name = "duo"
base_url = "{url}/v1"
wire_api = "responses"
"""
COMMANDS = {
    "codex": ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ASKED],
    "claude": ["-p", ASKED, "--dangerously-skip-permissions", "--model", "claude-sonnet-5"],
}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answer(prompt: str, folder: Path) -> str:
    """What the model writes after this prompt: the next call of a tool, or the end."""
    file, tools = str(folder / "notes.txt"), set(re.findall(r'"name": "(\w+)"', prompt))
    if "exec_command" in tools:
        commands = ("cat notes.txt", "sed -i s/colour/color/ notes.txt", "wc -l notes.txt")
        steps = [call("exec_command", cmd=command) for command in commands]
    else:
        edit = call("Edit", file_path=file, old_string="colour", new_string="color")
        steps = [call("Read", file_path=file), edit, call("Bash", command="wc -l notes.txt", description="count")]
    text = [*steps, DONE][min(prompt.count("<tool_response>"), len(steps))]
    return f"</think>\n{text}" if prompt.rstrip().endswith("<think>") else text


def main() -> None:
    programs = Path(sys.argv[1]).resolve()
    engine, slot = scripted_engine()
    slot.n_ctx = slot.target.n_ctx_train = 2**20
    slot.target.chat_template = slot.target.tool_template = ChatTemplate(HERMES)
    write = slot.write
    with engine, tempfile.TemporaryDirectory() as home, Lead(engine, port=0) as lead:
        folder = Path(home) / "task"
        folder.mkdir()
        (Path(home) / "config.toml").write_text(CONFIG.format(url=lead.url), encoding="utf-8")

        def write_next(request: Request) -> bool:
            slot.text = answer(slot.target.spelling(request.prompt).decode("utf-8", "replace"), folder)
            return write(request)

        slot.write = write_next  # type: ignore[method-assign]
        own = {"HOME": home, "CODEX_HOME": home, "ANTHROPIC_BASE_URL": lead.url, "ANTHROPIC_API_KEY": "none"}
        own |= {"IS_SANDBOX": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
        for name, arguments in COMMANDS.items():
            (folder / "notes.txt").write_text(BEFORE, encoding="utf-8")
            done = subprocess.run(
                [programs / name, *arguments], cwd=folder, env=os.environ | own, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            found = (folder / "notes.txt").read_text(encoding="utf-8") == AFTER and DONE in done.stdout
            sys.stdout.write(f"{name}: {'finished its task' if found else done.stdout[-2000:] + done.stderr[-2000:]}\n")


if __name__ == "__main__":
    main()
