#!/usr/bin/env bash
# CPython 3.11 (asyncio), as used by uvicorn 0.54.0 (PyPI).
# Expected: asyncio turns off Nagle's algorithm on each TCP connection, as its documentation says since 3.6.
# Instead: only where socket.proto is IPPROTO_TCP. That of a socket made with socket.create_server(), or socket.socket()
# with the default proto=0, is 0, also in the connections that it accepts. So a server that is given its listening socket
# collects small messages until the other side has acknowledged the last one; one that is given host and port does not.
# uvicorn's own Config.bind_socket(), which it uses with several workers and with --reload, makes such sockets.
# Why it matters: of two small messages in succession, the second waits for a round trip. duo lead makes its own sockets,
# and sends a draft worker what was accepted and, at once after it, what is verified now.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uvicorn==0.54.0
"$folder/venv/bin/python" - <<'PYTHON'
import asyncio, socket, sys
import uvicorn

async def is_off(**where):
    """Whether Nagle's algorithm is off in a connection that is accepted."""
    found = asyncio.Queue()

    async def serve(_, writer):
        its = writer.get_extra_info("socket")
        await found.put((its.proto, bool(its.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))))
        writer.close()

    server = await asyncio.start_server(serve, **where)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    writer.close()
    found = await found.get()
    server.close()
    return found

config = uvicorn.Config("app:app", host="127.0.0.1", port=0, log_level="critical")
ways = {
    "host and port": dict(host="127.0.0.1", port=0),
    "socket.create_server()": dict(sock=socket.create_server(("127.0.0.1", 0))),
    "uvicorn's bind_socket()": dict(sock=config.bind_socket()),
}
found = {way: asyncio.run(is_off(**where)) for way, where in ways.items()}
for way, (proto, off) in found.items():
    print(f"{way}: proto {proto}, Nagle's algorithm is", "off" if off else "on")
sys.exit(None if [off for _, off in found.values()] == [True, False, False] else "changed")
PYTHON
