"""What every attack must leave behind: an answer that is not a fault of the server, and a lead that serves others."""

import re
from contextlib import suppress

from tests.raw_http import HEALTH, Server, connect, read_answer, read_to_the_end

_STATUS = re.compile(rb"(?:^|\r\n\r\n|\})HTTP/1\.1 (\d{3}) ")
ALLOWED = (503, 507)  # statuses from 500 on that are no faults


def attack(server: Server, data: bytes) -> list[int]:
    """Send `data`, and no more; the statuses of what comes back until the server closes the connection."""
    with connect(server) as link:
        with suppress(ConnectionError):
            link.sendall(data)
        answer = read_to_the_end(link)
    assert b"Traceback" not in answer
    statuses = [int(status) for status in _STATUS.findall(answer)]
    assert bool(statuses) == bool(answer), answer[:200]
    faults = [status for status in statuses if status >= 500 and status not in ALLOWED]
    assert not faults, answer[:500]
    return statuses


def assert_serves(server: Server) -> None:
    """Others are answered."""
    with connect(server, HEALTH) as link:
        assert read_answer(link)[0] == 200
