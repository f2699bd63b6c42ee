"""Coalescing writers: small messages are sent together, and none waits for long.

A system call for each small message costs more than the message. Nagle's algorithm (RFC 896) saves
packets but not calls, and makes a message wait for the peer's acknowledgement. These writers set
TCP_NODELAY and gather messages themselves. What they have in common:

- Messages are sent in the order of the calls of write(), and all of them before close() returns.
- Memory is bounded: beyond `max_bytes` a write sends, or waits until there is room.
- An error is raised in the thread that sends. Because it is unknown how much the peer has received,
  the writer is then broken: every later call raises SendFailed, with the first error as its cause.
- They do not own the socket: close() ends the writer and leaves the connection open.

When is a message sent?

`CoalescingWriter`: there is at most one send per window. A message after a quiet window is sent at
once. Those that follow within the window are gathered, and sent with the first write after it, at
`max_bytes`, or by flush(), which must be called before waiting for an answer. What is left at the
end of a burst is sent by the process's flusher thread (flusher.py). Only the thread that owns the
writer appends; both threads send, under one lock.

`SharedCoalescingWriter`: a message after a quiet window is sent by the thread that writes it. What
is written during a send, or within the window, is left to the writer's own thread, which sends the
whole queue as one batch, then what was queued meanwhile, until it is empty. The writing threads
make no system calls and so keep the GIL, which makes batches large. The writer's thread does not
wait for the end of the window, because the shortest sleep is longer than that.

`AsyncCoalescingWriter`: the first message of a batch schedules a call for the loop's next turn by
call_soon, since a timer for each batch would cost more than the batch. What is written before that
call joins the batch, unless the window is over: then it is sent at once.
"""
