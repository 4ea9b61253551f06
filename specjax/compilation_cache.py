"""Persistent compilation cache: programs compiled by one process are loaded by the next one.

JAX writes entries in place and never replaces one that exists, so that a half-written entry stays. Here entries appear
whole, carry a checksum, and are dropped when they do not match it. The folder is bounded: the entries that were not
used for the longest time are removed.
"""

import contextlib
import hashlib
import os
import platform
import secrets
import sys
from pathlib import Path

VARIABLE = "SPECJAX_COMPILE_CACHE"  # "off", or a folder
OFF = ("off", "0", "false", "no")
MAX_BYTES = 2 << 30
DIGEST = 16  # bytes of the checksum before each entry
SUFFIX = ".program"


def enable_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Keeps compiled programs on disk, so that later processes load them instead of compiling them again.

    The command line calls this by default. Call it before the first computation.

    Args:
      folder: where to keep them. None: the folder in the environment variable SPECJAX_COMPILE_CACHE, else
        `specjax/programs` in the user's cache folder ($XDG_CACHE_HOME or ~/.cache, ~/Library/Caches on macOS,
        %LOCALAPPDATA% on Windows). Do not share a folder with users you do not trust: programs in it are executed.

    Returns:
      The folder in use; None if the cache is off: SPECJAX_COMPILE_CACHE=off, or the folder cannot be written. A cache
      that is configured through JAX (JAX_COMPILATION_CACHE_DIR) is left alone, unless `folder` is given.
    """
    import jax

    given = os.environ.get(VARIABLE, "")
    configured = jax.config.values["jax_compilation_cache_dir"]
    if folder is None and given.lower() in OFF:
        return None
    if folder is None and configured:
        return Path(configured)
    home = Path(folder if folder is not None else given or user_cache_folder() / "specjax" / "programs").expanduser()
    found = home / machine()
    try:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(found, os.W_OK | os.X_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(found))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    _install(found)
    return found


def user_cache_folder() -> Path:
    """The folder for caches of this user on this system."""
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "darwin":
        return Path("~/Library/Caches").expanduser()
    if sys.platform == "win32" and os.environ.get("LOCALAPPDATA"):
        return Path(os.environ["LOCALAPPDATA"])
    return Path("~/.cache").expanduser()


def machine() -> str:
    """A name for machines that can run each other's programs: a home folder may be shared between different CPUs."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()}-{hashlib.blake2b(line.encode(), digest_size=4).hexdigest()}"
    return platform.machine() or "any"


def _install(folder: Path) -> None:
    """Makes JAX read and write through `Programs`."""
    from jax._src import compilation_cache
    from jax._src.compilation_cache_interface import CacheInterface

    class Programs(Entries, CacheInterface):
        pass

    compilation_cache.reset_cache()
    compilation_cache._cache = Programs(folder)
    compilation_cache._cache_initialized = True


class Entries:
    """Checksummed files of a folder by key, bounded in total size, safe for several processes.

    Args:
      folder: an existing folder. max_bytes: bound of the total size.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES):
        self._path, self._max_bytes = folder, max_bytes
        self._total: int | None = None  # bytes in the folder; counted before the first entry is written

    def get(self, key: str) -> bytes | None:
        """The entry, or None if it is missing, unreadable or damaged; a damaged one is removed."""
        file = self._path / f"{key}{SUFFIX}"
        try:
            content = file.read_bytes()
        except OSError:
            return None
        if hashlib.blake2b(content[DIGEST:], digest_size=DIGEST).digest() != content[:DIGEST]:
            with contextlib.suppress(OSError):
                file.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(file)  # `_evict` removes the oldest first
        return content[DIGEST:]

    def put(self, key: str, value: bytes) -> None:
        """Writes an entry, which appears whole or not at all. A full or read-only disk is not an error."""
        aside = self._path / f".{secrets.token_hex(8)}.tmp"
        try:
            aside.write_bytes(hashlib.blake2b(value, digest_size=DIGEST).digest() + value)
            os.replace(aside, self._path / f"{key}{SUFFIX}")
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
            return
        if self._total is None or self._total + len(value) > self._max_bytes:
            self._total = self._evict()
        else:
            self._total += len(value)

    def _evict(self) -> int:
        """Removes the least recently used entries until the rest fit; the bytes that remain."""
        found = []
        for file in self._path.iterdir():
            with contextlib.suppress(OSError):  # removed by another process
                status = file.stat()
                if file.suffix in (SUFFIX, ".tmp"):
                    found.append((status.st_mtime, status.st_size, file))
        total = sum(size for _, size, _ in found)
        for _, size, file in sorted(found):
            if total <= self._max_bytes:
                break
            with contextlib.suppress(OSError):
                file.unlink()
            total -= size
        return total
