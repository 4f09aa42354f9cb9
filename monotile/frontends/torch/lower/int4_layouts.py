"""Layouts of PyTorch's packed 4-bit weights: where the code of row n and column k is."""

import torch

from monotile.frontends.builder import Unsupported, load
from monotile.frontends.torch.lower import scalar as s
from monotile.frontends.torch.lower.scalar import floordiv, mod
from monotile.ir.dtype import DType
from monotile.ir.expr import Expr, Tensor, add, cast, idx, mul

# Rows of a block by the vectors that PyTorch packs with on this machine.
_BLOCKS = {"AVX512": 64, "AVX2": 32}


def of_tiles(packed: Tensor, rows: int, n: Expr, k: Expr) -> Expr:
    """`_convert_weight_to_int4pack` on a GPU: int32 [n / 8, k / (16 inner), 32 lanes, inner / 2]. A word has 8 codes of one row: those that
    a lane of mma.m16n8k16 takes from two tiles along k."""
    inner = 2 * packed.shape[-1]
    tile = floordiv(k, idx(16))
    lane = add(mul(mod(n, idx(8)), idx(4)), floordiv(mod(k, idx(8)), idx(2)))
    index = [
        floordiv(n, idx(8)),
        floordiv(tile, idx(inner)),
        lane,
        floordiv(mod(tile, idx(inner)), idx(2)),
    ]
    # From the lowest bits: the even columns, of both halves of both tiles, then the odd ones.
    half = floordiv(mod(k, idx(16)), idx(8))
    place = add(add(half, mul(mod(tile, idx(2)), idx(2))), mul(mod(k, idx(2)), idx(4)))
    return _nibble(load(packed, index), place)


def of_cpu(packed: Tensor, rows: int, n: Expr, k: Expr) -> Expr:
    """`_convert_weight_to_int4pack_for_cpu`: uint8 [n, k / 2] by its shape. It consists of blocks of rows, each [k, rows / 2]. In whole
    blocks the low half of a byte is row r, and the high half row r + 32 (AVX-512) or r + 16 (AVX2); otherwise they are neighbouring rows."""
    capability = torch.backends.cpu.get_cpu_capability()
    block = _BLOCKS.get(capability)
    if block is None and capability != "DEFAULT":
        raise Unsupported(f"weights packed with {capability}")
    columns = 2 * packed.shape[1]
    whole = rows // block * block if block else 0

    def at(byte: Expr, high: Expr) -> Expr:
        word = load(packed, [floordiv(byte, idx(columns // 2)), mod(byte, idx(columns // 2))])
        return _nibble(word, high)

    def within(first: Expr, count: int, row: Expr, high: Expr) -> Expr:
        """first: row of the block. row: of a byte, in the block."""
        start = mul(first, idx(columns // 2))
        return at(add(start, add(mul(k, idx(count // 2)), row)), high)

    def blocked() -> Expr:
        assert block is not None
        r, first = mod(n, idx(block)), mul(floordiv(n, idx(block)), idx(block))
        half = block // 2
        return within(first, block, mod(r, idx(half)), floordiv(r, idx(half)))

    def rest() -> Expr:
        r = s.sub(n, whole)
        return within(idx(whole), rows - whole, floordiv(r, idx(2)), mod(r, idx(2)))

    if whole == rows:
        return blocked()
    if not whole:
        return rest()
    return s.select(s.lt(n, whole), blocked(), rest())


def _nibble(word: Expr, place: Expr) -> Expr:
    """The four bits of an integer at `place`, counted from the lowest, as int32."""
    wide = cast(word, DType.I32)
    shift = s.mul(cast(place, DType.I32), 4)
    return s.op("bitand", s.op("shr", wide, shift), 15)


def of_pairs(packed: Tensor, rows: int, n: Expr, k: Expr) -> Expr:
    """`pack_int4` of mslk and FBGEMM: [n, k / 2], the even column in the low bits; -8 … 7, here as 0 … 15."""
    code = _nibble(load(packed, [n, floordiv(k, idx(2))]), mod(k, idx(2)))
    return s.op("bitxor", code, 8)
