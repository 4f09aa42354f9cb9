"""Linear layers with packed weights, one after the other, beside the dense ones that they were.

    python -m bench.formats [SHAPE:FORMAT:ROWS ...] [--rival eager|int4pack|semi_structured]... [--out FILE]

FORMAT is one of `monotile.pack`'s, with "-asymmetric" for zeros and "-float32" for layers that are not float16.

A case is a chain of layers whose packed weights are more than twice the last-level cache, in one CUDA graph; times are of the whole chain, "layers"
says of how many. "eager" is the dense chain in PyTorch (cuBLAS), "int4pack" PyTorch's own product of int4 weights, "semi_structured" that of 2:4 (cuSPARSELt). Errors are to a chain of the decoded weights in
float64; that of "eager" is PyTorch's with these.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

import monotile
from bench.harness import Run, command, graph_timing, timed
from monotile.compare.results import Entry, Floor
from monotile.packing.layer import PackedLinear
from monotile.runtime.accuracy import error

SHAPES = {"8192x8192": (8192, 8192), "14336x4096": (4096, 14336), "4096x4096": (4096, 4096)}
FORMATS = ("int4", "int8", "int2", "int1", "nf4", "fp8", "mxfp4", "int4-asymmetric")
ROWS = {"int4": (1, 4, 8, 16), "int8": (1, 8), "fp8": (1, 8)}
LEAST = 128 << 20  # bytes of a chain's weights
CASES = tuple(f"{s}:{f}:{r}" for s in SHAPES for f in FORMATS for r in ROWS.get(f, (1,)))


def chain(
    shape: tuple[int, int], layers: int, device: torch.device, dtype: torch.dtype
) -> nn.Sequential:
    """Layers from the first size to the second and back."""
    a, b = shape
    sizes = [(a, b) if i % 2 == 0 else (b, a) for i in range(layers)]
    made = nn.Sequential(
        *(nn.Linear(k, n, bias=False, dtype=dtype, device=device) for k, n in sizes)
    )
    for p in made.parameters():
        nn.init.normal_(p, std=p.shape[1] ** -0.5)
    return made.eval().requires_grad_(False)


def pack(dense: nn.Sequential, name: str) -> nn.Sequential:
    kind, _, rest = name.partition("-")
    packed = monotile.pack(dense, kind, symmetric=rest != "asymmetric")
    assert isinstance(packed, nn.Sequential)
    return packed


def entries(
    names: tuple[str, ...], rivals: tuple[str, ...], device: torch.device, rate: float
) -> Iterator[tuple[str, Callable[[], Entry]]]:
    for name in names:
        yield name, lambda name=name: entry(name, rivals, device, rate)


@torch.no_grad()
def entry(name: str, rivals: tuple[str, ...], device: torch.device, rate: float) -> Entry:
    shape, *kinds, rows = name.split(":")
    kind = ":".join(kinds)
    dtype = torch.float32 if kind.endswith("-float32") else torch.float16
    a, b = SHAPES[shape]
    one = pack(chain((a, b), 1, device, dtype), kind)
    each = sum(x.nbytes for x in one.buffers())
    layers = 2 * max(2, -(-LEAST // each // 2))
    dense = chain((a, b), layers, device, dtype)
    packed = pack(dense, kind)
    x = torch.randn(int(rows), a, dtype=dtype, device=device)
    runs: dict[str, Run] = {}
    runs["ours"], took = timed(lambda: monotile.compile(packed, (x,)))
    if "eager" in rivals:
        runs["eager"] = dense
    if "int4pack" in rivals and kind == "int4" and hasattr(torch, "_weight_int4pack_mm"):
        runs["int4pack"] = library_int4(packed)
    if "semi_structured" in rivals and kind == "2:4" and int(rows) % 8 == 0:
        runs["semi_structured"] = library_sparse(packed)
    right = in_float64(packed, x)
    errors = {"eager": error(packed(x), [right])} if "eager" in rivals else dict[str, float]()
    times = {key: graph_timing(lambda run=run: run(x), device) for key, run in runs.items()}
    for key in runs:
        if key != "eager":  # which is timed with other weights
            errors[key] = error(runs[key](x), [right])
    weights = sum(x.nbytes for x in packed.buffers())
    return Entry(
        model=f"packed_{kind}", arguments={"shape": shape, "rows": int(rows), "layers": layers, "compile_s": round(took, 1)},
        dtype=str(dtype).removeprefix("torch."), ours=times.pop("ours"), rivals=times, errors=errors, floor=Floor(weights, 0, weights / rate * 1e6),
    )  # fmt: skip


def in_float64(packed: nn.Sequential, x: Tensor) -> Tensor:
    y = x.double()
    for layer in packed:
        assert isinstance(layer, PackedLinear)
        y = functional.linear(y, layer.weight.double())
    return y


def library_int4(packed: nn.Sequential) -> Run:
    """PyTorch's int4 product, in bfloat16: the same codes."""
    made: list[tuple[Tensor, Tensor]] = []
    for layer in packed:
        assert isinstance(layer, PackedLinear)
        codes, scale = layer.get_buffer("codes"), layer.get_buffer("scale").bfloat16()
        high_first = (codes << 4) | (codes >> 4)
        weight = torch.ops.aten._convert_weight_to_int4pack(high_first, 8)
        made.append(
            (weight, torch.stack((scale, torch.zeros_like(scale)), -1).transpose(0, 1).contiguous())
        )

    def run(x: Tensor) -> Tensor:
        y = x.bfloat16()
        for weight, scales in made:
            y = torch.ops.aten._weight_int4pack_mm(y, weight, 128, scales)
        return y

    return run


def library_sparse(packed: nn.Sequential) -> Run:
    """PyTorch's product of weights of which two of each four are not zero."""
    weights = [
        torch.sparse.to_sparse_semi_structured(layer.weight)
        for layer in packed
        if isinstance(layer, PackedLinear)
    ]

    def run(x: Tensor) -> Tensor:
        for weight in weights:
            x = functional.linear(x, weight)
        return x

    return run


NOTES = "chains of layers in CUDA graphs; errors of 'eager' are PyTorch's with the decoded weights"
main = command(CASES, NOTES, entries)


if __name__ == "__main__":
    main()
