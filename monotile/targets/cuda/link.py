"""Links relocatable PTX to a cubin, with nvJitLink from its wheel.

ptxas compiles a kernel and all functions that it calls as one unit, and part of its time grows with the square of the unit. In
relocatable code each function is a unit, and units are compiled in parallel. The cost for the kernel is in docs/measurements.md.
"""

import os
import re
from collections.abc import Callable, Sequence

import msgspec
from cuda.bindings import nvjitlink  # pyright: ignore[reportAttributeAccessIssue]  # no stubs

from monotile.errors import BuildError, InternalError
from monotile.targets.binary import Binary

# Of a text of PTX: where a function or variable begins, its name, and a function that others may call.
_ITEM = re.compile(r"^(?=(?:\.\w+ )?\.(?:func|entry|global|shared|const)\b)", re.MULTILINE)
_NAME = re.compile(
    r"\.func\s+(?:\([^)]*\)\s*)?(?P<function>[\w$]+)|\.entry\s+(?P<entry>[\w$]+)"
    r"|(?P<variable>[\w$]+)(?:\[\d*\])*(?: = .*)?;"
)
_CALLED = re.compile(r"^\.(?:visible|weak) (?=\.func\b)")
# What ptxas calls a routine of its own for, at least sometimes, and what a function says of the registers that it keeps.
_ROUTINE = re.compile(r"\b(?:div|rcp|sqrt)\.r[nzmp]\b|\b(?:div|rem)\.[su]64\b")
_KEPT = re.compile(r"\.abi_preserve \d+\s*")


def nvjitlink_version() -> tuple[int, int]:
    """The version of the nvJitLink that builds would use. Raises BuildError if there is none."""
    try:
        major, minor = nvjitlink.version()
    except RuntimeError as error:  # cuda-pathfinder found no library
        raise BuildError(
            "nvJitLink, CUDA's run-time linker, was not found. Install its wheel:"
            " pip install 'nvidia-nvjitlink>=13.0,<14'"
        ) from error
    return major, minor


def linked(parts: Sequence[Binary], architecture: str) -> Binary:
    """One Binary of the relocatable PTX of `parts`, the kernel's first, with its image for `architecture` ("sm_90a"). Raises BuildError with
    the linker's log."""
    ptx = joined([p.ptx for p in parts])
    content = ptx.encode() + b"\0"
    # ptxas compiles functions side by side. Their number changes nothing, from two on; one makes other code of the kernel, which then knows of
    # each function what it leaves alone.
    options = [f"-arch={architecture}", f"-Xptxas=--split-compile={max(2, os.cpu_count() or 1)}"]
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, content, len(content), "monotile.ptx")
        nvjitlink.complete(handle)
        image = _content(handle, nvjitlink.get_linked_cubin_size, nvjitlink.get_linked_cubin)
        said = _text(handle, nvjitlink.get_info_log_size, nvjitlink.get_info_log)
    except nvjitlink.nvJitLinkError as error:
        log = _text(handle, nvjitlink.get_error_log_size, nvjitlink.get_error_log)
        raise BuildError(f"nvJitLink refused the kernel: {error}\n{log}") from error
    finally:
        nvjitlink.destroy(handle)
    log = "\n".join(dict.fromkeys(filter(None, (*(p.log for p in parts), said))))
    return msgspec.structs.replace(parts[0], image=image, ptx=ptx, log=log)


def joined(parts: Sequence[str]) -> str:
    """One module of several, the kernel's first. All functions are the module's own then, so that ptxas knows which registers each of them
    leaves to the kernel. What several parts define is one.

    Functions that divide keep to the usual convention. ptxas (13.0) forgets for others that the routine of a quotient, which zeros and very small or
    large numbers need, overwrites R20 and R21: NASNet then read a weight at a random address."""
    items: dict[str, str] = {}
    for part in (*parts[1:], parts[0]):
        for item in _ITEM.split(part)[1:]:
            found = _NAME.search(item)
            if found is None:
                raise InternalError(f"PTX without a name: {item[:80]}")
            name = found[found.lastgroup or 0]
            if items.get(name, ".extern").startswith(".extern"):
                item = _KEPT.sub("", item) if _ROUTINE.search(item) else item
                items[name] = _CALLED.sub("", item)
    return _ITEM.split(parts[0])[0] + "".join(items.values())


def _content(
    handle: int, size_of: Callable[[int], int], get: Callable[[int, bytearray], None]
) -> bytes:
    buffer = bytearray(size_of(handle))
    if buffer:
        get(handle, buffer)
    return bytes(buffer)


def _text(handle: int, size_of: Callable[[int], int], get: Callable[[int, bytearray], None]) -> str:
    return _content(handle, size_of, get).rstrip(b"\0").decode(errors="replace").strip()
