"""What pip says, in one line. The rest of wheel.py is tested through the demo pair."""

from __future__ import annotations

import pytest

from duo.models.wheel import _reason

NO_MATCH = "ERROR: No matching distribution found for x==1"


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM ...", "x==1:", "Got 12"], "its checksum is wrong"),
        (["error: incomplete-download", "", "× Download failed", "╰─> URL: u", "", "hint: resume"], "Download failed"),
        (["ERROR: Could not find x==1", NO_MATCH, ""], "No matching distribution found for x==1"),
        (["ERROR: Exception:", "Traceback", "ReadTimeoutError: Read timed out."], "ReadTimeoutError: Read timed out."),
        ([], "pip exited with status 3"),
    ],
)
def test_reason(output: list[str], reason: str) -> None:
    assert _reason(output, 3) == reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("""NewConnectionError("HTTPConnection(host='h', port=9): No route to host")""", " (No route to host)"),
        ("NewConnectionError('<pip.HTTPConnection object at 0x7f>: No route to host')", " (No route to host)"),
        ("ConnectTimeoutError(<pip.HTTPConnection object at 0x7f>, 'Timed out. (in=15)')", " (Timed out. (in=15))"),
        ("ProtocolError('Connection aborted.', RemoteDisconnected('Remote end closed'))", ""),
    ],
)
def test_no_connection(error: str, reason: str) -> None:
    retry = f"WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by '{error}': /simple/x/"
    assert _reason([retry, NO_MATCH], 1) == f"the package index cannot be reached{reason}"
