"""On-chip memory of a softmax-weighted sum: the layout of `targets/cuda/device/attend_stream.cuh`."""

from monotile.kernels.attention.method import Attend
from monotile.kernels.common.cost import round_up
from monotile.kernels.common.panels import panel_bytes


def attend_bytes(a: Attend, features: int, columns: int, warps: int, size: int) -> int:
    """Queries and every slice's ring of keys and values, if these are not read directly; afterwards the slices combine their results in
    the same memory. size: bytes of an element."""
    slices, columns = a.slices(warps), round_up(columns, 8)
    pitch = columns + (8 if columns % 16 == 0 else 0)
    found = slices * (-(-a.block_m * (pitch + 2) // 4) * 4) * 4
    if a.direct:
        return found
    if a.instruction == "wgmma":  # panels of 64, one after the other: lines of 128 bytes
        features, columns = (-(-n // 64) * 64 for n in (features, columns))
        ring = slices * a.depth * a.chunk * (features + columns) * 2
        return max(a.block_m * features * 2 + ring, found)
    step = 32 // size
    deep = -(-features // step) * step
    query = _lined(panel_bytes(a.block_m, deep, a.query, size))
    key = _lined(panel_bytes(a.chunk, deep, a.key, size))
    value = _lined(panel_bytes(columns, a.chunk, a.value, size))
    return max(query + slices * a.depth * (key + value), found)


def _lined(nbytes: int) -> int:
    """Panels begin at multiples of 128 bytes."""
    return -(-nbytes // 128) * 128
