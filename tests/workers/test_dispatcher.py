"""Both dispatchers on their own: who is told of what, how often, and in which thread."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from wsgifast.errors import ConfigurationError
from wsgifast.workers.dispatcher import (
    READ,
    WRITE,
    Dispatcher,
    EpollDispatcher,
    Event,
    SelectorsDispatcher,
    make_dispatcher,
)

# Waiting that only a broken dispatcher would sit out.
PATIENCE_S = 30.0


@pytest.fixture(params=["epoll", "selectors"])
def dispatcher(request: pytest.FixtureRequest) -> Iterator[Dispatcher]:
    made = make_dispatcher(request.param)
    yield made
    made.close()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket to be waited for, and its peer."""
    sock, peer = socket.socketpair()
    with sock, peer:
        yield sock, peer


Pair = tuple[socket.socket, socket.socket]


def events_of(dispatcher: Dispatcher, timeout: float = PATIENCE_S) -> list[Event]:
    """Poll past wake-ups until there is an event."""
    while True:
        events = dispatcher.poll(timeout)
        if events or timeout == 0:
            return events


def nothing_more(dispatcher: Dispatcher) -> bool:
    # The first poll may only take up changes that the selectors one has queued.
    return dispatcher.poll(0) == [] and dispatcher.poll(0) == []


def test_an_event_is_told_once_for_each_arming(dispatcher: Dispatcher, pair: Pair) -> None:
    sock, peer = pair
    dispatcher.add(sock.fileno(), READ)
    assert nothing_more(dispatcher)
    peer.send(b"a")
    for _ in range(3):
        assert events_of(dispatcher) == [(sock.fileno(), READ)]
        peer.send(b"more")
        assert nothing_more(dispatcher)  # although there is something to read
        dispatcher.arm(sock.fileno(), READ)


def test_arming_changes_what_is_waited_for(dispatcher: Dispatcher, pair: Pair) -> None:
    sock, peer = pair
    dispatcher.add(sock.fileno(), READ)
    assert nothing_more(dispatcher)
    dispatcher.arm(sock.fileno(), WRITE)
    assert events_of(dispatcher) == [(sock.fileno(), WRITE)]
    peer.send(b"a")
    dispatcher.arm(sock.fileno(), 0)
    assert nothing_more(dispatcher)
    dispatcher.arm(sock.fileno(), READ)
    assert events_of(dispatcher) == [(sock.fileno(), READ)]


@pytest.mark.parametrize("waiting_for", [READ, WRITE])
def test_a_peer_that_has_gone_is_an_event(
    dispatcher: Dispatcher, pair: Pair, waiting_for: int
) -> None:
    sock, peer = pair
    dispatcher.add(sock.fileno(), waiting_for)
    peer.close()
    ((fd, events),) = events_of(dispatcher)
    assert fd == sock.fileno()
    assert events & waiting_for


def test_a_listener_is_told_until_it_is_forgotten(dispatcher: Dispatcher) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as stack:
        dispatcher.listen(listener.fileno())
        for _ in range(2):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        for _ in range(2):
            assert events_of(dispatcher) == [(listener.fileno(), READ)]
            stack.enter_context(listener.accept()[0])
        assert nothing_more(dispatcher)
        stack.enter_context(socket.create_connection(listener.getsockname()))
        assert events_of(dispatcher) == [(listener.fileno(), READ)]
        dispatcher.forget(listener.fileno())
        assert nothing_more(dispatcher)
        dispatcher.listen(listener.fileno())  # there is room again
        assert events_of(dispatcher) == [(listener.fileno(), READ)]


def test_a_forgotten_descriptor_is_not_told(dispatcher: Dispatcher, pair: Pair) -> None:
    sock, peer = pair
    dispatcher.add(sock.fileno(), READ)
    dispatcher.forget(sock.fileno())
    dispatcher.forget(sock.fileno())  # nor is it an error to say so again
    peer.send(b"a")
    assert nothing_more(dispatcher)


def test_the_number_of_a_closed_descriptor_is_used_again(dispatcher: Dispatcher) -> None:
    sock, peer = socket.socketpair()
    fd = sock.fileno()
    dispatcher.add(fd, READ)
    assert nothing_more(dispatcher)
    if dispatcher.must_forget:
        dispatcher.forget(fd)
    sock.close()
    peer.close()
    sock, peer = socket.socketpair()
    if sock.fileno() != fd:  # the peer may have got the number
        sock, peer = peer, sock
    with sock, peer:
        assert sock.fileno() == fd
        peer.send(b"a")
        assert nothing_more(dispatcher)
        dispatcher.add(fd, READ)
        assert events_of(dispatcher) == [(fd, READ)]
        assert nothing_more(dispatcher)


def in_thread(dispatcher: Dispatcher, found: list[Event]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.extend(events_of(dispatcher)))
    thread.start()
    return thread


def test_any_thread_may_arm_while_another_one_polls(dispatcher: Dispatcher, pair: Pair) -> None:
    sock, peer = pair
    found: list[Event] = []
    polling = in_thread(dispatcher, found)
    peer.send(b"a")
    dispatcher.add(sock.fileno(), READ)
    polling.join(PATIENCE_S)
    assert found == [(sock.fileno(), READ)]
    again = in_thread(dispatcher, found)
    dispatcher.arm(sock.fileno(), READ)
    again.join(PATIENCE_S)
    assert found == [(sock.fileno(), READ)] * 2


def test_closing_what_another_thread_waits_for(dispatcher: Dispatcher, pair: Pair) -> None:
    sock, peer = pair
    doomed, other = socket.socketpair()
    dispatcher.add(doomed.fileno(), READ)
    dispatcher.add(sock.fileno(), READ)
    found: list[Event] = []
    polling = in_thread(dispatcher, found)
    if dispatcher.must_forget:
        dispatcher.forget(doomed.fileno())
    doomed.close()
    other.close()
    peer.send(b"a")
    polling.join(PATIENCE_S)
    assert (sock.fileno(), READ) in found


def test_each_event_goes_to_one_of_many_threads(dispatcher: Dispatcher) -> None:
    count = 200
    told: Counter[int] = Counter()
    lock = threading.Lock()
    everything = threading.Event()

    def poll() -> None:
        while not everything.is_set():
            for fd, _ in dispatcher.poll(PATIENCE_S):
                with lock:
                    told[fd] += 1
                    if len(told) == count:
                        everything.set()
        dispatcher.wake()  # the next one ends too

    with contextlib.ExitStack() as stack:
        threads = [threading.Thread(target=poll) for _ in range(4)]
        for thread in threads:
            thread.start()
        socks = []
        for _ in range(count):
            sock, peer = socket.socketpair()
            stack.enter_context(peer)
            socks.append(stack.enter_context(sock))
            peer.send(b"a")
            dispatcher.add(sock.fileno(), READ)
        for thread in threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        assert told == {sock.fileno(): 1 for sock in socks}
        for sock in socks:
            dispatcher.forget(sock.fileno())


def test_a_wake_ends_the_poll_that_waits_or_the_next_one(dispatcher: Dispatcher) -> None:
    dispatcher.wake()
    assert dispatcher.poll(None) == []
    polling = threading.Thread(target=dispatcher.poll, args=(None,))
    polling.start()
    dispatcher.wake()
    polling.join(PATIENCE_S)
    assert not polling.is_alive()


def test_wakes_that_nobody_takes_up_do_not_block_or_pile_up(
    dispatcher: Dispatcher, pair: Pair
) -> None:
    sock, peer = pair
    for _ in range(100_000):  # more than a pipe holds
        dispatcher.wake()
    peer.send(b"a")
    dispatcher.add(sock.fileno(), READ)
    assert events_of(dispatcher) == [(sock.fileno(), READ)]


def test_a_time_limit_ends_a_poll(dispatcher: Dispatcher, pair: Pair) -> None:
    dispatcher.add(pair[0].fileno(), READ)
    dispatcher.poll(0)
    assert dispatcher.poll(0.01) == []


def test_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"'kqueue'.*'auto', 'epoll', 'selectors'"):
        make_dispatcher("kqueue")
    with contextlib.closing(make_dispatcher("auto")) as made:
        assert isinstance(made, EpollDispatcher)
    monkeypatch.delattr(select, "epoll")
    with contextlib.closing(make_dispatcher("auto")) as made:
        assert isinstance(made, SelectorsDispatcher)
    with pytest.raises(ConfigurationError, match="this system has none; use 'selectors'"):
        make_dispatcher("epoll")
