"""Large pages for the data that every call reads: a TLB miss costs a page walk, and prefetchers stop at the end of a page."""

import ctypes
import sys
from collections.abc import Iterable

import torch

PAGE = 1 << 21  # bytes of a large page of x86-64, and of AArch64 with small ones of 4 KB
GAP = 1 << 16  # bytes, up to which neighbours are one run
_HUGEPAGE, _COLLAPSE = 14, 25  # MADV_HUGEPAGE and, from Linux 6.1 on, MADV_COLLAPSE


def enlarge(tensors: Iterable[torch.Tensor]) -> None:
    """Asks the operating system to put these tensors in large pages: at once, or where it cannot do that, in the background.

    Contents and addresses stay. What the system refuses, such as pages of a file, stays in small ones, without a message.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in pages(tensors):
        refused = [
            madvise(at, PAGE, _COLLAPSE) for at in range(start, end, PAGE)
        ]  # one by one: it stops at the first refusal
        if all(refused):
            madvise(start, end - start, _HUGEPAGE)


def pages(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """First address and end of the large pages that contain the tensors, in runs of at least one; ascending and disjoint."""
    spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in tensors)
    runs: list[tuple[int, int]] = []
    for start, end in spans:
        if runs and start - runs[-1][1] < GAP:
            start, end = runs[-1][0], max(end, runs.pop()[1])
        runs.append((start, end))
    found: list[tuple[int, int]] = []
    for start, end in ((s // PAGE * PAGE, -(-e // PAGE) * PAGE) for s, e in runs if e - s >= PAGE):
        first = found.pop()[0] if found and start <= found[-1][1] else start
        found.append((first, end))
    return found
