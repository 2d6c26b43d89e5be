"""From a decode of the target that rejects a candidate to the verdict on the wire, and on to the worker's decode."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import servers
from benchmarks.contestants import ALONE, Setup, patched
from benchmarks.runner import Outcome, Scenario, prompts_of
from duo.bench.results import middle_and_quartiles, spread

# Lead and worker are processes of their own, which write microseconds to FILE. A new epoch is a rejection.
_START = "import os, socket, time\nfile, now = os.open({file!r}, os.O_WRONLY | os.O_CREAT), time.perf_counter\n"
_WRITE = "os.write(file, b'%d ' % (1e6 * (now() - {since})))"
_LEAD = f"""
from duo.llama.context import Context
from duo.remote import connection
decode, send, ended, epoch = Context.decode, connection._send, 0.0, -1
def decoding(*arguments, **more):
    global ended
    rows, ended = decode(*arguments, **more), now()
    return rows
async def sending(link, message):
    global epoch
    await send(link, message)
    if type(message).__name__ == "Text" and message.epoch > epoch:
        {_WRITE.format(since="ended")}
    epoch = getattr(message, "epoch", epoch)
Context.decode, connection._send = decoding, sending
"""
_WORKER = f"""
from duo.llama.context import Context
from duo.remote.worker import RemoteTarget
receive, update, arrived, since = socket.socket.recv, RemoteTarget.update, 0.0, None
def receiving(*arguments):
    global arrived
    data, arrived = receive(*arguments), now()
    return data
def updating(target, text):
    global since
    since = arrived if text.may_draft and text.epoch != target._lead_epoch else since
    update(target, text)
def decoding(decode):
    def decoding(*arguments, **more):
        global since
        if since is not None:
            {_WRITE.format(since="since")}
            since = None
        return decode(*arguments, **more)
    return decoding
socket.socket.recv, RemoteTarget.update = receiving, updating
Context.decode, Context.decode_each = decoding(Context.decode), decoding(Context.decode_each)
"""


class Verdicts(Scenario):
    """-r is the number of texts."""

    def run(self, setup: Setup) -> Outcome:
        codes = {"target's decode to the wire": _LEAD, "wire to the draft's decode": _WORKER}
        files = [setup.folder / str(i) for i in range(len(codes))]
        sides = [  # as the setup's command, but patched
            [*side.duo[: -len(setup.duo)], *patched(_START.format(file=str(file)) + code)]
            for side, file, code in zip(servers.pinned(setup), files, codes.values(), strict=True)
        ]
        lead = servers.lead(replace(setup, duo=sides[0]), *ALONE.split(), "--schedule", "async")
        setup.stack.enter_context(servers.back(setup, lead.port, sides[1]))
        servers.wait_until(lambda: lead.metric("duo:workers_connected") == 1, lead)
        for prompt in prompts_of(setup)[: setup.n_rounds]:
            servers.stream(lead.url, prompt.text, setup.n_tokens)
        found = {name: [int(us) for us in file.read_text().split()] for name, file in zip(codes, files, strict=True)}
        lines = [f"- {name}: {spread(middle_and_quartiles(us), 0)} µs, {len(us)} times" for name, us in found.items()]
        return Outcome(lines, {"us": found}, [])
