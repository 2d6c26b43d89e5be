"""Handles: what is in use is not freed, and what is closed is not used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from duo.errors import ClosedError
from duo.llama.handle import Handle


@pytest.fixture
def freed() -> list[object]:
    return []


@pytest.fixture
def handle(freed: list[object]) -> Handle:
    return Handle("pointer", freed.append)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def until_closing(handle: Handle) -> None:
    """Wait until close() has begun."""
    while True:
        try:
            handle.pointer  # noqa: B018
        except ClosedError:
            return


def test_close_frees_once(handle: Handle, freed: list[object]) -> None:
    with handle.use() as pointer:
        assert pointer == "pointer"
    handle.close()
    handle.close()
    assert (freed, handle.closed) == (["pointer"], True)
    with pytest.raises(ClosedError, match=r"^Handle is closed$"), handle.use():
        pass
    with pytest.raises(ClosedError):
        handle.pointer  # noqa: B018


def test_close_waits_for_all_users(handle: Handle, freed: list[object], pool: ThreadPoolExecutor) -> None:
    leave, begun = threading.Event(), threading.Barrier(3)

    def use() -> list[object]:
        with handle.use():
            begun.wait(60)
            leave.wait(60)
            return list(freed)

    users = [pool.submit(use) for _ in range(2)]
    begun.wait(60)
    closing = pool.submit(handle.close)
    until_closing(handle)
    with pytest.raises(ClosedError), handle.use():
        pass
    assert (freed, closing.done()) == ([], False)
    leave.set()
    closing.result(60)
    assert [user.result(60) for user in users] == [[], []]
    assert freed == ["pointer"]


def test_a_parent_waits_for_the_users_of_its_children(
    handle: Handle, freed: list[object], pool: ThreadPoolExecutor
) -> None:
    child = Handle("child", freed.append, parent=handle)
    leave, begun = threading.Event(), threading.Event()

    def use() -> None:
        with child.use():
            begun.set()
            leave.wait(60)

    user = pool.submit(use)
    assert begun.wait(60)
    closing = pool.submit(handle.close)
    until_closing(child)
    assert not freed
    leave.set()
    closing.result(60)
    user.result(60)
    assert freed == ["child", "pointer"]


@pytest.mark.parametrize("end", [Handle.close, lambda handle: handle._finalizer()])
def test_nobody_waits_for_a_thread_that_llama_cpp_blocks(
    handle: Handle, freed: list[object], end: Callable[[Handle], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an RPC server was lost, or at the interpreter's exit: the pointer is left to the end of the process."""
    monkeypatch.setattr("duo.llama.handle.is_lost", lambda: True)
    leave, begun = threading.Event(), threading.Event()

    def use() -> None:
        with handle.use():
            begun.set()
            leave.wait(60)

    user = threading.Thread(target=use)
    user.start()
    assert begun.wait(60)
    end(handle)
    assert not freed
    leave.set()
    user.join(60)
