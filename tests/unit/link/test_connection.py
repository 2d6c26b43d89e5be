"""Connections that wait for their clients: which make room for others, and which are aborted."""

from __future__ import annotations

from typing import cast
from unittest.mock import Mock

import pytest

from duo.link.connection import DEFAULT_LIMITS, Connection, make_room


class Fake:
    """What make_room() asks of a connection."""

    def __init__(self, address: str, since: float, *, is_waiting: bool = True) -> None:
        self.address = address
        self.since = since
        self.is_waiting = is_waiting
        self.is_gone = False
        self.transport = self

    def abort(self) -> None:
        self.is_gone = True

    def is_closing(self) -> bool:
        return self.is_gone

    def get_write_buffer_size(self) -> int:
        return 0


def closed_of(*connections: Fake) -> list[tuple[str, float]]:
    """Which ones make_room() closes."""
    make_room(cast(list[Connection], connections), 4)
    return [(one.address, one.since) for one in connections if one.is_gone]


def test_the_connection_that_has_waited_longest_makes_room() -> None:
    one = [Fake("a", 1), Fake("b", 0, is_waiting=False), Fake("c", 3), Fake("d", 2)]
    assert closed_of(*one) == []
    assert closed_of(*one, Fake("e", 4)) == [("a", 1)]
    assert closed_of(*one, Fake("f", 5)) == [("a", 1)], "there is room"
    assert closed_of(*(Fake("busy", i, is_waiting=False) for i in range(4)), Fake("new", 9)) == [("new", 9)]


@pytest.mark.parametrize(
    ("left", "aborted"), [([100, 90, 10], False), ([100, 100], True), ([100, 90, 95], True)], ids=str
)
def test_a_client_is_disconnected_if_it_reads_nothing_for_a_while(left: list[int], aborted: bool) -> None:
    connection = Connection()
    connection.config, connection.loop, connection.transport = Mock(limits=DEFAULT_LIMITS), Mock(), Mock()
    connection.transport.get_write_buffer_size.side_effect = left
    connection.pause_writing()
    for _ in left[1:]:
        delay_s, again, *arguments = connection.loop.call_later.call_args.args
        assert delay_s == DEFAULT_LIMITS.read_s
        again(*arguments)
    assert connection.transport.abort.called is aborted
