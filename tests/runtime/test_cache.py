"""The disk cache: keys, whole entries only, concurrent writers."""

import multiprocessing
import os
import time
from pathlib import Path

import pytest

import monotile.cache
from monotile.cache import Cache, cache_directory, key
from monotile.config import NOT_IN_CACHE_KEY, Options
from monotile.targets.cpu.target import cpu_target


def test_get_what_was_put(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.get(key("a")) is None
    cache.put(key("a"), b"content")
    assert cache.get(key("a")) == b"content"


def test_keys_tell_their_parts_apart() -> None:
    target = cpu_target(workers=2)
    keys = [
        key(),
        key("ab"),
        key("a", "b"),
        key(b"ab"),
        key("a", target),
        key("a", cpu_target(workers=3)),
        key("a", Options()),
        key("a", Options(fast_math=True)),
    ]
    assert len(set(keys)) == len(keys)
    assert key("a", target) == key("a", cpu_target(workers=2))


def test_options_that_change_nothing_are_not_in_the_key() -> None:
    other = Options(cache=False, cache_dir="x", dump_dir="y", progress=True)
    assert {f for f in Options.__struct_fields__ if getattr(other, f) != getattr(Options(), f)} == (
        NOT_IN_CACHE_KEY
    )
    assert key(Options()) == key(other)


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: c[:10], lambda c: c + b"x", lambda _: b""]
)
def test_damaged_entries_count_as_absent_and_are_replaced(tmp_path: Path, damage: object) -> None:
    cache, k = Cache(tmp_path), key("a")
    cache.put(k, b"content")
    path = cache.path(k)
    assert path is not None
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(k) is None
    cache.put(k, b"content")
    assert cache.get(k) == b"content"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    Cache(blocked).put(key("a"), b"content")
    assert Cache(blocked).get(key("a")) is None


def test_what_no_one_reads_for_a_month_is_swept_away(tmp_path: Path) -> None:
    cache, month = Cache(tmp_path), 31 * 86400
    for name in ("old", "read", "new"):
        cache.put(key(name), b"content")
    before = time.time() - month
    for file in (cache.path(key("old")), cache.path(key("read")), tmp_path / "swept"):
        assert file is not None
        os.utime(file, (before, before))
    assert cache.get(key("read")) == b"content"
    cache.put(key("another"), b"content")
    found = {n: cache.get(key(n)) is not None for n in ("old", "read", "new", "another")}
    assert found == {"old": False, "read": True, "new": True, "another": True}


def test_switched_off() -> None:
    cache = Cache.of(Options(cache=False))
    cache.put(key("a"), b"content")
    assert cache.get(key("a")) is None


def test_where_it_lives(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("MONOTILE_CACHE_DIR", raising=False)
    assert cache_directory(Options()) == Path("/xdg/monotile")
    monkeypatch.setenv("MONOTILE_CACHE_DIR", "/named")
    assert cache_directory(Options()) == Path("/named")
    assert cache_directory(Options(cache_dir=str(tmp_path))) == tmp_path


def _hammer(folder: str, wrong: "multiprocessing.SimpleQueue[bool]") -> None:
    cache, k = Cache(Path(folder)), key("shared")
    content = b"0123456789" * 20000
    for _ in range(40):
        cache.put(k, content)
        if cache.get(k) != content:
            wrong.put(True)


def test_processes_may_write_one_entry_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    wrong: multiprocessing.SimpleQueue[bool] = context.SimpleQueue()
    workers = [context.Process(target=_hammer, args=(str(tmp_path), wrong)) for _ in range(3)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert wrong.empty()
    assert [p.name for p in tmp_path.rglob("*.tmp")] == []


def test_the_digest_is_of_the_package_and_of_nothing_else() -> None:
    assert Path(monotile.__file__).parent == monotile.cache._PACKAGE  # pyright: ignore[reportPrivateUsage]
