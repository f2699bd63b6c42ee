"""Coalescing writers: small messages leave together, and none waits for long.

A system call for each small message costs more than the message; Nagle's algorithm (RFC 896) saves
packets but not calls, and makes a message wait for the peer's acknowledgement. These writers send
with TCP_NODELAY and gather by hand. What they have in common:

- The bytes leave in the order in which write() was called, and all of them before close() returns.
- Memory is bounded: beyond `max_bytes` a write sends, or waits until there is room.
- An error reaches whoever sends. As nobody knows how much the peer got, the writer is broken from
  then on: every later write, flush and close raises SendFailed, with the first error as its cause.
- They do not own the socket: close() ends the writer and leaves the connection open.

When is a message sent?

`CoalescingWriter`: at most one send a window. A message after a quiet window goes out at once;
those that follow within the window are gathered, and leave with the first write after it, at
`max_bytes`, or by flush(), which belongs before every wait for an answer. What is left behind at
the end of a burst is sent by the process's flusher (flusher.py), so it waits for nobody's call.
Who does what: the thread that owns the writer appends and sends; the flusher sends only what is
overdue. Both send under one lock.

`SharedCoalescingWriter`: a message after a quiet window is sent by the thread that writes it. What
comes while somebody sends, or within the window, is left to the writer's own thread, which at once
sends the whole queue as one batch, then what was queued meanwhile, until it is empty. Writing
threads that make no system call keep the interpreter, so batches are large: four threads wrote
746,000 messages a second (p99 285 us), against 397,000 (959 us) when they were the senders
themselves. That thread does not wait for the window to end: no thread can sleep for less than
60 us, so a lone message and its answer took 139 us with such a wait, and 18 to 60 us without.

`AsyncCoalescingWriter`: the first message of a batch asks the loop for a call in its next turn, by
call_soon; creating a timer for each batch costs more than the batch. What is written before that
call joins the batch, unless it is older than the window already: then it leaves at once.
"""

from typing import TYPE_CHECKING

from ...imports import exports_on_demand
from .blocking import CoalescingWriter
from .common import SendFailed, WriterClosed
from .shared import SharedCoalescingWriter

if TYPE_CHECKING:
    from .asynchronous import AsyncCoalescingWriter
else:
    __getattr__ = exports_on_demand(__name__, {"AsyncCoalescingWriter": ".asynchronous"})

__all__ = [
    "AsyncCoalescingWriter",
    "CoalescingWriter",
    "SendFailed",
    "SharedCoalescingWriter",
    "WriterClosed",
]
