"""Handles: what is in use is not freed, and what is closed is not used."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from duo.errors import ClosedError
from duo.llama.lifeline import Handle


@pytest.fixture
def freed() -> list[object]:
    return []


@pytest.fixture
def handle(freed: list[object]) -> Handle:
    return Handle("pointer", freed.append)


@pytest.mark.parametrize("has_child", [False, True])
def test_close_waits_for_the_users_of_a_handle_and_of_its_children(
    handle: Handle, freed: list[object], has_child: bool
) -> None:
    used = Handle("child", freed.append, parent=handle) if has_child else handle
    leave, begun = threading.Event(), threading.Barrier(3)

    def use() -> list[object]:
        with used.use():
            begun.wait(60)
            leave.wait(60)
            return list(freed)

    with ThreadPoolExecutor() as pool:
        users = [pool.submit(use) for _ in range(2)]
        begun.wait(60)
        closing = pool.submit(handle.close)
        with suppress(ClosedError):
            while True:
                used.pointer  # noqa: B018 - until close() has begun
        assert (freed, closing.done()) == ([], False)
        leave.set()
        closing.result(60)
    assert [user.result(60) for user in users] == [[], []]
    handle.close()
    assert handle.closed
    assert freed == ["child", "pointer"][not has_child :], "each once"
    with pytest.raises(ClosedError, match=r"^Handle is closed$"), used.use():
        pass


@pytest.mark.parametrize("end", [Handle.close, lambda handle: handle._finalizer()])
def test_nobody_waits_for_a_thread_that_llama_cpp_blocks(
    handle: Handle, freed: list[object], end: Callable[[Handle], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an RPC server was lost, or at the interpreter's exit: the pointer is left to the end of the process."""
    monkeypatch.setattr("duo.llama.lifeline.is_lost", lambda: True)
    with handle.use():
        thread = threading.Thread(target=end, args=[handle])
        thread.start()
        thread.join(60)
        assert (freed, thread.is_alive()) == ([], False)
