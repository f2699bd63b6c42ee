"""The memory cache: its limit, its second-chance algorithm, and threads."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from wsgifast.files.found import CacheEntry, MemoryCache


@given(
    st.integers(0, 50),
    st.lists(st.tuples(st.sampled_from(["put", "get"]), st.integers(0, 9), st.integers(0, 60))),
)
def test_cache_keeps_to_its_bound(bound: int, steps: list[tuple[str, int, int]]) -> None:
    cache: MemoryCache[CacheEntry] = MemoryCache(bound)
    put: dict[str, CacheEntry] = {}
    for step, number, cost in steps:
        key = str(number)
        if step == "put":
            put[key] = CacheEntry(cost)
            cache.put(key, put[key])
        else:
            assert cache.get(key) in (None, put.get(key))
        cached = [value for k in map(str, range(10)) if (value := cache.get(k)) is not None]
        assert cache.used_bytes == sum(value.cost for value in cached) <= bound


def test_value_in_use_stays_cached() -> None:
    cache: MemoryCache[CacheEntry] = MemoryCache(10)
    cache.put("hot", CacheEntry(1))
    for number in range(100):
        assert cache.get("hot") is not None, f"driven out by {number}"
        cache.put(str(number), CacheEntry(1))
    assert cache.used_bytes == 10


def test_cache_used_by_threads_keeps_its_sum() -> None:
    cache: MemoryCache[CacheEntry] = MemoryCache(500)

    def work(seed: int) -> None:
        for number in range(3000):
            key = str((number * 7 + seed) % 97)
            cached = cache.get(key)
            if cached is None:
                cache.put(key, CacheEntry(1 + number % 20))
            elif number % 5 == 0:
                cache.put(key, CacheEntry(2))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cached = [value for n in range(97) if (value := cache.get(str(n))) is not None]
    assert cache.used_bytes == sum(value.cost for value in cached) <= 500
