"""Connections whose clients do not read: which of them are aborted."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from duo.link.connection import DEFAULT_LIMITS, Connection


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
