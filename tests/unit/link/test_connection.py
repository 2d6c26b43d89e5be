"""The limit on the time that a client does not read."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from duo.link.connection import READ_S, Connection


@pytest.mark.parametrize(
    ("left", "aborted"), [([100, 90, 10], False), ([100, 100], True), ([100, 90, 95], True)], ids=str
)
def test_a_client_is_disconnected_if_it_reads_nothing_for_a_while(left: list[int], aborted: bool) -> None:
    connection = Connection()
    connection.loop, connection.transport = Mock(), Mock()
    connection.transport.get_write_buffer_size.side_effect = left
    connection._time_reader()
    for _ in left[1:]:
        delay_s, again, *arguments = connection.loop.call_later.call_args.args
        assert delay_s == READ_S
        again(*arguments)
    assert connection.transport.abort.called is aborted
