"""The cache on disk: bytes by key, safe under concurrent use.

An entry is one file: a SHA-256 of its content, then the content. Writers make a file of their own and
rename it into place, so a reader sees a whole entry or none; an entry whose hash does not match (a
full disk, a crash) counts as absent and is replaced by the next write. Nothing is ever locked. Entries that no
one read for a month are swept away, at most once a day, by whoever writes.
"""

import contextlib
import functools
import hashlib
import os
import tempfile
import time
from pathlib import Path

import msgspec

from monotile.config import NOT_IN_CACHE_KEY, Options

_HASH_BYTES = 32
_KEPT = 30 * 86400.0  # seconds after its last use
_SWEPT_EVERY = 86400.0
_PACKAGE = Path(__file__).resolve().parent
_SOURCES = (".py", ".h", ".cuh", ".c", ".cu", ".json")


def cache_directory(options: Options) -> Path:
    """The folder of the entries: `options.cache_dir`, `$MONOTILE_CACHE_DIR`, else the user's cache directory."""
    if options.cache_dir is not None:
        return Path(options.cache_dir)
    if named := os.environ.get("MONOTILE_CACHE_DIR"):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "monotile"


@functools.cache
def package_digest() -> str:
    """A hash of every source file, device header and figures file of Monotile itself, so that any change to the
    compiler is a new key, in a checkout as in a release."""
    digest = hashlib.sha256()
    for path in sorted(p for p in _PACKAGE.rglob("*") if p.suffix in _SOURCES):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_PACKAGE)}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()


def key(*parts: object) -> str:
    """A hex SHA-256 of `parts`: str, bytes and whatever msgspec encodes (Options, Target, Source, ...).

    Options enter without the fields that do not change the result (`NOT_IN_CACHE_KEY`). The package's own
    digest is always part of it.
    """
    digest = hashlib.sha256(package_digest().encode())
    for part in parts:
        if isinstance(part, Options):
            part = {
                name: value
                for name, value in msgspec.structs.asdict(part).items()
                if name not in NOT_IN_CACHE_KEY
            }
        encoded = part if isinstance(part, bytes) else _ENCODER.encode(part)
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


_ENCODER = msgspec.json.Encoder(order="deterministic")


class Cache(msgspec.Struct, frozen=True):
    """A folder of entries; None: looks up and stores nothing."""

    folder: Path | None

    @staticmethod
    def of(options: Options) -> "Cache":
        return Cache(cache_directory(options) if options.cache else None)

    def path(self, key: str) -> Path | None:
        """The entry's file, which need not exist."""
        return None if self.folder is None else self.folder / key[:2] / key[2:]

    def get(self, key: str) -> bytes | None:
        """The entry's content; None if there is none, or it is not intact."""
        path = self.path(key)
        if path is None:
            return None
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # read just now: not to be swept away
        digest, content = entry[:_HASH_BYTES], entry[_HASH_BYTES:]
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, key: str, content: bytes) -> None:
        """Stores an entry. An error while writing is ignored."""
        path = self.path(key)
        if path is not None:
            with contextlib.suppress(OSError):
                write_atomically(path, hashlib.sha256(content).digest() + content)
                self._sweep()

    def _sweep(self) -> None:
        """Deletes entries, and remains of interrupted writes, that are older than `_KEPT`."""
        assert self.folder is not None
        now, stamp = time.time(), self.folder / "swept"
        if stamp.exists() and now - stamp.stat().st_mtime < _SWEPT_EVERY:
            return
        stamp.touch()
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(OSError):  # another process may be at it too
                if now - path.stat().st_mtime > _KEPT:
                    path.unlink()


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file such that a reader of `path` sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
