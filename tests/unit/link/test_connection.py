"""Connections that wait for their clients: which make room for others, and which are aborted."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from duo.link.connection import DEFAULT_LIMITS, Connection, make_room


def waiting(since: float, *, is_waiting: bool = True) -> Mock:
    """What make_room() asks of a connection."""
    transport = Mock(**{"is_closing.return_value": False, "get_write_buffer_size.return_value": 0})
    transport.abort.side_effect = lambda: transport.is_closing.configure_mock(return_value=True)
    return Mock(since=since, is_waiting=is_waiting, transport=transport)


def test_the_connection_that_has_waited_longest_makes_room() -> None:
    connections = [waiting(1), waiting(0, is_waiting=False), waiting(3), waiting(2)]

    def closed() -> list[float]:
        make_room(connections, 4)
        return [one.since for one in connections if one.transport.abort.called]

    assert closed() == []
    connections.append(waiting(4))
    assert closed() == closed() == [1], "then there is room"
    busy = [waiting(i, is_waiting=False) for i in range(4)]
    make_room([*busy, new := waiting(9)], 4)
    assert new.transport.abort.called


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
