"""A cache with a bound in bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar


class Kept:
    """A value of the cache.

    :ivar cost: the bytes of memory that it takes at most, including what it may cache itself later.
    :ivar used: set at each hit, cleared when the cache makes room.
    """

    __slots__ = ("cost", "used")

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self.used = False


K = TypeVar("K", bound=Kept)


class MemoryCache(Generic[K]):
    """Caches recently used values, up to a total cost in bytes.

    A hit takes no lock: it sets a flag. Eviction is in the order of insertion, with a second chance
    for what has been used since (the "clock" algorithm). That is close to least recently used, and
    resists scans: many files that are requested once do not evict those in use.

    :param max_bytes: bound on the sum of all costs; 0 caches nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._kept: OrderedDict[str, K] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: str) -> K | None:
        kept = self._kept.get(key)
        if kept is not None:
            kept.used = True
        return kept

    def put(self, key: str, value: K) -> list[tuple[str, K]]:
        """Cache a value in place of the key's last one, unless it alone exceeds the bound.

        :returns: what had to make room for it; itself, if that is so.
        """
        with self._lock:
            self._remove(key)
            if value.cost > self.max_bytes:
                return [(key, value)]
            evicted = []
            while self._bytes + value.cost > self.max_bytes:
                evicted.append(self._evict_one())
            self._kept[key] = value
            self._bytes += value.cost
            return evicted

    def drop(self, key: str, value: K) -> None:
        """Remove a value, unless another thread has replaced it."""
        with self._lock:
            if self._kept.get(key) is value:
                self._remove(key)

    def _evict_one(self) -> tuple[str, K]:
        while True:
            key = next(iter(self._kept))
            oldest = self._kept[key]
            if not oldest.used:
                self._remove(key)
                return key, oldest
            oldest.used = False
            self._kept.move_to_end(key)

    def _remove(self, key: str) -> None:
        value = self._kept.pop(key, None)
        if value is not None:
            self._bytes -= value.cost
