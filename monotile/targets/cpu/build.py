"""C to a shared object, with the system's C compiler or, where there is none, the one in the ziglang wheel."""

import ctypes
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from monotile.cache import Cache, cache_directory, key
from monotile.config import Options
from monotile.errors import BuildError
from monotile.targets.binary import Binary, excerpt
from monotile.targets.target import Target

HEADERS = Path(__file__).resolve().parent.parent
NAME = "monotile.c"
FLAGS = (
    "-O3",
    "-march=native",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fopenmp-simd",
    "-fno-math-errno",
    "-fno-trapping-math",
    # GCC 12 packs the masked loads of an unrolled loop under one of their masks: wrong results.
    "-fno-tree-slp-vectorize",
)
# Not -ffast-math: GCC links start-up code for it that flushes denormals in the whole process, and it
# assumes that there are no infinities, of which masks are made.
FAST_MATH = ("-fassociative-math", "-freciprocal-math", "-fno-signed-zeros")


class Compiler(msgspec.Struct, frozen=True):
    """command: the command line that starts it. version: the first line of its version text. zig: whether it is the wheel's."""

    command: tuple[str, ...]
    version: str
    zig: bool = False


def find_compiler() -> Compiler:
    """The C compiler that builds would use: `$CC`, cc, gcc, clang, else the ziglang wheel's.

    Raises BuildError where there is none, or `$CC` cannot be run.
    """
    named = os.environ.get("CC")
    return _find(named, os.environ.get("PATH", ""))


@functools.cache
def _find(named: str | None, path: str) -> Compiler:
    if named:
        command = tuple(shlex.split(named))
        if shutil.which(command[0], path=path) is None:
            raise BuildError(f'the C compiler that $CC names, "{named}", was not found')
        return Compiler(command, _version(command))
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name, path=path)
        if found is not None:
            return Compiler((found,), _version((found,)))
    if importlib.util.find_spec("ziglang") is not None:
        version = f"zig {importlib.metadata.version('ziglang')}"
        return Compiler((sys.executable, "-m", "ziglang", "cc"), version, zig=True)
    raise BuildError(
        "no C compiler was found. Install gcc or clang, set $CC, or: pip install ziglang"
    )


def _version(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(
            f'the C compiler "{shlex.join(command)}" cannot be run: {error}'
        ) from error
    return done.stdout.partition("\n")[0].strip()


@functools.cache
def processor() -> str:
    """A hash of the properties that -march=native depends on, so that machines of two kinds may share a cache folder."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    lines = [line for line in text.partition("\n\n")[0].splitlines() if line.startswith(wanted)]
    return hashlib.sha256("\n".join([os.uname().machine, *lines]).encode()).hexdigest()[:16]


@functools.cache
def tiles_allowed() -> bool:
    """Asks the system for the registers of AMX's tiles, as a process has to before it uses them (Linux,
    Documentation/arch/x86/xstate.rst). Gives whether it is allowed."""
    if os.uname().machine != "x86_64":
        return False
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


def build(source: str, target: Target, options: Options) -> Binary:
    """Compiles one C file that includes headers of `device/`; uses an equal build from the cache.

    target: compilers prefer its vector width; without tiles, words are multiplied by vectors.

    Raises BuildError with the compiler's log and the source lines that it names.
    """
    compiler = find_compiler()
    flags = FLAGS + (FAST_MATH if options.fast_math else ())
    if os.uname().machine == "x86_64":
        flags += (f"-mprefer-vector-width={8 * target.vector_bytes}",)
    if compiler.zig:
        flags += ("-fno-sanitize=undefined",)
    if not ("amx.bf16" in target.instructions and tiles_allowed()):
        flags += ("-DMT_NO_TILES",)
    cache = Cache.of(options)
    entry = key("cpu", source, flags, compiler, processor())
    found = Binary.decode(cache.get(entry))
    if found is not None:
        return found
    binary = _compile(source, compiler, flags, options)
    cache.put(entry, binary.encode())
    return binary


def _compile(source: str, compiler: Compiler, flags: tuple[str, ...], options: Options) -> Binary:
    with tempfile.TemporaryDirectory(prefix="monotile-") as folder:
        file, product = Path(folder, NAME), Path(folder, "monotile.so")
        file.write_text(source)
        command = [*compiler.command, *flags, f"-I{HEADERS}", "-o", str(product), str(file), "-lm"]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                cwd=folder,
                env=_environment(compiler, options, folder),
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except OSError as error:
            raise BuildError(f"{compiler.version} cannot be run: {error}") from error
        log = (done.stdout + done.stderr).strip()
        if done.returncode != 0:
            lines = [int(n) for n in re.findall(rf"{re.escape(NAME)}:(\d+):\d+: .*error", log)]
            raise BuildError(
                f"the C compiler ({compiler.version}) refused the generated source:"
                f" {shlex.join(command)}\n{excerpt(source, lines)}\n\nIts log:\n{log}"
            )
        image = product.read_bytes()
        return Binary("cpu", image, "", compiler.version, processor=processor(), log=log)


def _environment(compiler: Compiler, options: Options, folder: str) -> dict[str, str]:
    """The compiler's environment: messages in English, so that `_compile` can read the line numbers."""
    own = dict(os.environ) | {"LC_ALL": "C"}
    if (
        compiler.zig
    ):  # wants a folder that it may write to; builds its C library there once (seconds)
        cache = str(cache_directory(options) / "zig") if options.cache else folder
        own = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache} | own
    return own


def load(image: bytes) -> ctypes.CDLL:
    """Loads a shared object from memory. It is never unloaded: its threads may outlive every user."""
    with tempfile.NamedTemporaryFile(prefix="monotile-", suffix=".so") as file:
        file.write(image)
        file.flush()
        tiles_allowed()  # it may have been built by another process
        return ctypes.CDLL(file.name)
