"""Relocatable PTX to a cubin, with nvJitLink from its wheel.

ptxas takes a kernel and all that it calls as one unit, and part of its time grows with the square of the unit. In relocatable
code each function is one. What that costs the kernel is in docs/measurements.md.
"""

import re
from collections.abc import Callable

import msgspec
from cuda.bindings import nvjitlink  # pyright: ignore[reportAttributeAccessIssue]  # no stubs

from monotile.errors import BuildError
from monotile.targets.binary import Binary

# Registers that a function leaves as they were (PTX ISA 9.0, `.abi_preserve`). Without a word it saves some fifty, in which a
# kernel that only calls one stage after the other has next to nothing. Of fewer than 2 ptxas warns: the return address is there.
PRESERVED = 4
_FUNCTION = re.compile(
    r"^(\.func [^;{]*?\))\s*(?=[;{])", re.MULTILINE
)  # not `.visible`: the kernel's own


def nvjitlink_version() -> tuple[int, int]:
    """Of the nvJitLink that builds would use. Raises BuildError where there is none."""
    try:
        major, minor = nvjitlink.version()
    except RuntimeError as error:  # cuda-pathfinder found no library
        raise BuildError(
            "nvJitLink, CUDA's run-time linker, was not found. Install its wheel:"
            " pip install 'nvidia-nvjitlink>=13.0,<14'"
        ) from error
    return major, minor


def linked(binary: Binary, architecture: str) -> Binary:
    """`binary` of relocatable PTX, with its image for `architecture` ("sm_90a"). Raises BuildError with the linker's log."""
    ptx = _FUNCTION.sub(rf"\1 .abi_preserve {PRESERVED}\n", binary.ptx)
    content = ptx.encode() + b"\0"
    options = [f"-arch={architecture}", "-split-compile=0"]
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
    log = "\n".join(filter(None, (binary.log, said)))
    return msgspec.structs.replace(binary, image=image, ptx=ptx, log=log)


def _content(
    handle: int, size_of: Callable[[int], int], get: Callable[[int, bytearray], None]
) -> bytes:
    buffer = bytearray(size_of(handle))
    if buffer:
        get(handle, buffer)
    return bytes(buffer)


def _text(handle: int, size_of: Callable[[int], int], get: Callable[[int, bytearray], None]) -> str:
    return _content(handle, size_of, get).rstrip(b"\0").decode(errors="replace").strip()
