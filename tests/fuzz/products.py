"""Products and what goes with them: linear layers, convolutions, pooling, normalisation, attention, resampling."""

import math

import torch

import monotile.frontends.torch.sparse  # noqa: F401  # registers the operator that networks call
from tests.fuzz.builder import Builder, is_finite, is_float
from tests.fuzz.runs import Rejected

WIDTHS = (1, 2, 3, 5, 8, 13, 16, 32)


def rank(low: int, high: int = 6):
    return lambda x: x.is_floating_point() and low <= x.dim() <= high and x.numel() > 0


def matmul(b: Builder) -> None:
    x = b.pick(rank(1))
    k, kind = b.shape(x)[-1], b.dtype_of(x)
    fitting = [
        n
        for n in b.pool
        if rank(1)(b.value(n)) and b.dtype_of(n) == kind and b.shape(n)[-2:][0] == k
    ]
    if fitting and b.chance(0.4):
        y = b.r.choice(fitting)
        b.emit(f"torch.tanh({x} @ {y})" if b.chance(0.5) else f"{x} @ {y}")
        return
    batch = b.shape(x)[:-2] if b.chance(0.3) else ()
    b.emit(f"{x} @ {b.weight((*batch, k, b.r.choice(WIDTHS)), kind, k)}")


def linear(b: Builder) -> None:
    x = b.pick(rank(1))
    k, kind, n = b.shape(x)[-1], b.dtype_of(x), b.r.choice(WIDTHS)
    bias = f", {b.floats((n,), kind)}" if b.chance(0.6) else ""
    b.emit(f"F.linear({x}, {b.weight((n, k), kind, k)}{bias})")


def dense(b: Builder) -> None:
    """Layers of widths that tensor cores take whole, odd ones among them, each with what fuses with it."""
    kind = b.r.choice(("f16", "bf16", b.dtype))
    rows, k = b.r.choice((1, 5, 17, 30, 33, 40)), b.r.choice((32, 64, 72))
    x = b.floats((rows, k), kind, parameter=False)
    for _ in range(b.r.randint(1, 3)):
        n = b.r.choice((5, 7, 13, 24, 31, 40, 64, 72))
        before = b.r.choice(("{}", "{}", "F.relu({})", "F.gelu({})", f"F.layer_norm({{}}, ({k},))"))
        after = b.r.choice(("{}", "{}", "torch.tanh({})", "F.silu({})", "{}.softmax(-1)"))
        bias = f", {b.floats((n,), kind)}" if b.chance(0.6) else ""
        made = f"F.linear({before.format(x)}, {b.weight((n, k), kind, k)}{bias})"
        (x,), k = b.emit(after.format(made)), n


def coded(b: Builder) -> None:
    """A layer whose weight is codes of a few bits in bytes, taken apart in one of several ways, with what groups of neighbours share."""
    kind, bits = b.r.choice(("f16", "bf16", b.dtype)), b.r.choice((1, 2, 4, 4, 8))
    rows, k, n = b.r.choice((1, 2, 5, 17, 33)), b.r.choice((32, 64, 96, 128)), b.r.choice((5, 24, 40, 64))  # fmt: skip
    group, mask = b.r.choice((8, 16, 32, k)), (1 << bits) - 1
    places = list(range(0, 8, bits))
    if b.chance(0.3):
        places.reverse()
    codes = b.leaf(f"torch.randint(0, 256, ({n}, {k * bits // 8}), generator=g({b.seed()})).to(torch.uint8)", parameter=True)  # fmt: skip
    part = b.r.choice((f"({codes} >> {{s}}) & {mask}", f"{codes} // {{p}} % {mask + 1}"))
    parts = ", ".join(part.format(s=s, p=1 << s) for s in places)
    numbers = codes if bits == 8 else f"torch.stack(({parts}), -1).flatten(-2)"
    if b.chance(0.25):
        values = (
            f"{b.floats((256 if bits == 8 else mask + 1,), kind, parameter=True)}[{numbers}.long()]"
        )
    else:
        zero = b.r.choice(("0", str(mask // 2 + 1), "zero"))
        if zero == "zero":
            zeros = b.integers(0, mask + 1, (n, k // group, 1), "i16")
            zero = f"{zeros}.expand(-1, -1, {group}).flatten(1)"
        values = f"({numbers}.to(torch.int16) - {zero}).to(t.{kind})"
    scale = b.positive((n, k // group if k % group == 0 else 1, 1), kind)
    scaled = f"({values}.unflatten(1, ({scale}.shape[1], -1)) * {scale}).flatten(1) * {(mask * k**0.5) ** -1:.3g}"
    b.emit(f"F.linear({b.floats((rows, k), kind, parameter=False)}, {scaled})")


def masked(b: Builder) -> None:
    """A product of an operand that is mostly zero, as is stated of a mask of runs of rows, or of the operand itself."""
    kind = b.r.choice(("f16", "bf16", b.dtype))
    lists, run, grain = b.r.choice((1, 2, 3)), b.r.choice((16, 32, 32)), b.r.choice((1, 1, 2, 8))
    k, n, share = b.r.choice((128, 160, 256)), b.r.choice((16, 24, 40)), b.r.choice((0.0, 0.05, 0.2, 0.9))  # fmt: skip
    kept = b.leaf(f"torch.rand({lists}, {k // grain}, generator=g({b.seed()})) < {share}", parameter=False)  # fmt: skip
    spread = f".repeat_interleave({run}, 0).repeat_interleave({grain}, 1)"
    x = b.floats((lists * run, k), kind, parameter=False)
    stated = b.r.choice(
        (
            f"{x} * torch.ops.monotile.sparse({kept}, [1, 1]){spread}",
            f"torch.ops.monotile.sparse(F.relu({x}) * {kept}{spread}, [{run}, {grain}])",
        )
    )
    forms = (
        f"({stated}) @ {b.weight((k, n), kind, k)}",
        f"F.linear({stated}, {b.weight((n, k), kind, k)})",
        f"F.linear({b.weight((n, k), kind, k)}, {stated})",
    )
    b.emit(b.r.choice(forms))


def integer_product(b: Builder) -> None:
    """Codes times codes, in integers."""
    rows, k, n = b.r.choice((1, 5, 17, 33)), b.r.choice((32, 64, 96)), b.r.choice((8, 24, 40))
    x, w = b.integers(-128, 128, (rows, k), "i8"), b.integers(-128, 128, (n, k), "i8")
    scale = b.positive((n,), "f32")
    b.emit(f"torch._int_mm({x}, {w}.t()).to(t.f32) * {scale} * {(16384 * k**0.5) ** -1:.3g}")


def transposed(b: Builder) -> None:
    """A product with a value of its own kind: scores, Gram matrices."""
    x = b.pick(rank(2))
    k = b.shape(x)[-1]
    b.emit(f"{x} @ {x}.transpose(-1, -2) * {k**-0.5:.4f}")


def einsum(b: Builder) -> None:
    x = b.pick(rank(1, 4))
    letters = "abcd"[: len(b.shape(x))]
    sizes = dict(zip(letters, b.shape(x), strict=True)) | {"m": b.r.choice(WIDTHS[:6])}
    common = b.r.sample(letters, b.r.randint(1, min(2, len(letters))))
    second = [*common, "m"] if b.chance(0.8) else common
    b.r.shuffle(second)
    y = b.weight([sizes[c] for c in second], b.dtype_of(x), math.prod(sizes[c] for c in common))
    out = [c for c in dict.fromkeys((*letters, *second)) if c not in common or b.chance(0.3)]
    out.sort()
    b.r.shuffle(out)
    b.emit(f'torch.einsum("{letters},{"".join(second)}->{"".join(out)}", {x}, {y})')


def added(b: Builder) -> None:
    x = b.pick(rank(2, 3))
    *batch, m, k = b.shape(x)
    n, kind = b.r.choice(WIDTHS), b.dtype_of(x)
    name = "torch.addmm" if not batch else "torch.baddbmm"
    b.emit(f"{name}({b.floats((m, n), kind)}, {x}, {b.weight((*batch, k, n), kind, k)}, alpha=0.5)")


def outer(b: Builder) -> None:
    x = b.pick(rank(1, 1))
    y = b.floats((b.size(),), b.dtype_of(x))
    b.emit(b.r.choice((f"torch.outer({x}, {y})", f"{x}[:, None] * {y}", f"torch.dot({x}, {x})")))


def images(b: Builder, spatial: int) -> str:
    """A value [batch, channels, ...], made from another if there is none."""
    try:
        return b.pick(rank(spatial + 2, spatial + 2), lambda x: min(x.shape[2:]) > 1)
    except Rejected:
        pass
    if b.chance(0.5):
        shape = (
            b.r.choice((1, 2)),
            b.r.choice((2, 3, 4, 6)),
            *(b.r.choice((4, 5, 7, 8, 9)) for _ in range(spatial)),
        )
        (x,) = b.emit(f"{b.floats(shape, b.dtype, parameter=False)} * 1")
        return x
    x = b.pick(rank(spatial, spatial + 1), lambda x: min(x.shape[-spatial:]) > 1)
    (y,) = b.emit(f"{x}{'[None]' * (spatial + 2 - len(b.shape(x)))}")
    return y


def convolution(b: Builder) -> None:
    spatial = b.r.choice((1, 1, 2, 2, 2, 3))
    x = images(b, spatial)
    channels, kind = b.shape(x)[1], b.dtype_of(x)
    groups = b.r.choice([g for g in range(1, channels + 1) if channels % g == 0])
    n = groups * b.r.choice((1, 2, 3))
    kernel = [b.r.choice((1, 2, 3)) for _ in range(spatial)]
    bias = b.floats((n,), kind) if b.chance(0.5) else "None"
    stride, padding, dilation = b.r.choice((1, 1, 2)), b.r.choice((0, 1)), b.r.choice((1, 1, 2))
    if b.chance(0.25):
        w = b.weight((channels, n // groups, *kernel), kind, channels // groups * math.prod(kernel))
        more = f"{stride}, {padding}, output_padding={b.r.randint(0, stride - 1)}, groups={groups}, dilation={dilation}"
        b.emit(f"F.conv_transpose{spatial}d({x}, {w}, {bias}, {more})")
        return
    w = b.weight((n, channels // groups, *kernel), kind, channels // groups * math.prod(kernel))
    where = '"same"' if stride == 1 and b.chance(0.2) else str(padding)
    b.emit(f"F.conv{spatial}d({x}, {w}, {bias}, {stride}, {where}, {dilation}, {groups})")


def tower(b: Builder) -> None:
    """Convolutions after one another, and what stands between them: channels lie last there on a GPU."""
    x = images(b, 2)
    for _ in range(b.r.choice((2, 3))):
        channels, kind = b.shape(x)[1], b.dtype_of(x)
        k, stride = b.r.choice((1, 3, 3, 5)), b.r.choice((1, 1, 2))
        groups = b.r.choice((1, 1, channels, 2 if channels % 2 == 0 else 1))
        n = channels if groups == channels else b.r.choice((4, 8, 12, 16))
        w = b.weight((n, channels // groups, k, k), kind, channels // groups * k * k)
        (y,) = b.emit(f"F.conv2d({x}, {w}, None, {stride}, {k // 2}, 1, {groups})")
        between = (
            f"F.relu({y})",
            f"F.silu({y})",
            f"F.max_pool2d({y}, 3, 2, 1)",
            f"F.avg_pool2d({y}, 3, 1, 1)",
            f"{y} * torch.sigmoid({y}.mean((2, 3), keepdim=True))",
            f"torch.cat([{y}, F.relu({y})], 1)",
            f"{y} + F.relu({y})",
        )
        (x,) = b.emit(b.r.choice(between))


def pool(b: Builder) -> None:
    spatial = b.r.choice((1, 2, 2, 3))
    x = images(b, spatial)
    k, s, p = b.r.choice((2, 3)), b.r.choice((1, 2)), b.r.choice((0, 1))
    ceil = b.r.choice((True, False))
    b.emit(
        b.r.choice(
            (
                f"F.max_pool{spatial}d({x}, {k}, {s}, {p}, ceil_mode={ceil})",
                f"F.avg_pool{spatial}d({x}, {k}, {s}, {p}, ceil_mode={ceil}, count_include_pad={b.chance(0.5)})",
                f"F.adaptive_avg_pool{spatial}d({x}, {b.r.choice((1, 2, 3))})",
                f"F.adaptive_max_pool{spatial}d({x}, {b.r.choice((1, 2, 3))})",
            )
        )
    )


def norm(b: Builder) -> None:
    match b.r.randrange(6):
        case 0 | 1:
            x = b.pick(rank(1))
            shape = b.shape(x)[-b.r.choice((1, 1, 2)) :]
            affine = (
                f", {b.floats(shape, b.dtype_of(x))}, {b.floats(shape, b.dtype_of(x))}"
                if b.chance(0.6)
                else ""
            )
            b.emit(f"F.layer_norm({x}, {tuple(shape)}{affine})")
        case 2:
            x = b.pick(rank(1))
            n = b.shape(x)[-1]
            b.emit(f"F.rms_norm({x}, ({n},), {b.floats((n,), b.dtype_of(x))}, 1e-3)")
        case 3:
            x = b.pick(rank(2, 5))
            n, kind = b.shape(x)[1], b.dtype_of(x)
            mean, weight, shift = (b.floats((n,), kind) for _ in range(3))
            b.emit(f"F.batch_norm({x}, {mean}, {b.positive((n,), kind)}, {weight}, {shift})")
        case 4:
            x = b.pick(rank(2, 5))
            _, n, *rest = b.shape(
                x
            )  # not groups of one element, which are rounding errors made large
            fit = [g for g in range(1, n + 1) if n % g == 0 and n // g * math.prod(rest) != 1] or [
                1
            ]
            b.emit(f"F.group_norm({x}, {b.r.choice(fit)})")
        case _:
            x = b.pick(rank(3, 5))
            b.emit(b.r.choice((f"F.instance_norm({x})", f"F.normalize({x}, dim={b.dim(x)})")))


def attention(b: Builder) -> None:
    """Of finite values: of others PyTorch's own kernels make NaN in different places."""
    x = b.pick(rank(2, 4), is_finite)
    kind, (m, width) = b.dtype_of(x), b.shape(x)[-2:]
    if b.chance(0.4):
        k = v = x
    else:
        n = b.r.choice((m, 3, 7, 16))
        k, v = (b.floats((*b.shape(x)[:-2], n, width), kind, parameter=False) for _ in range(2))
    n = b.shape(k)[-2]
    more = b.r.choice(
        ("", ", is_causal=True", ", attn_mask={mask}", ", attn_mask={bias}", ", scale=0.3")
    )
    if "{mask}" in more:
        more = more.replace("{mask}", b.mask((m, n)))
    if "{bias}" in more:
        more = more.replace("{bias}", b.floats((m, n), kind))
    b.emit(f"F.scaled_dot_product_attention({x}, {k}, {v}{more})")


def resample(b: Builder) -> None:
    spatial = b.r.choice((1, 2, 2))
    x = images(b, spatial)
    mode = b.r.choice(
        (
            "nearest",
            "nearest-exact",
            "linear" if spatial == 1 else b.r.choice(("bilinear", "bicubic")),
        )
    )
    more = ", align_corners=True" if "near" not in mode and b.chance(0.5) else ""
    size = tuple(b.r.choice((2, 5, 9, 12)) for _ in range(spatial))
    how = f"size={size}" if b.chance(0.5) else f"scale_factor={b.r.choice((2, 0.5, 1.5))}"
    b.emit(f'F.interpolate({x}, {how}, mode="{mode}"{more})')


def other(b: Builder) -> None:
    match b.r.randrange(4):
        case 0:
            x = b.pick(rank(1), lambda t: t.shape[-1] % 2 == 0)
            b.emit(f"F.glu({x})")
        case 1:
            x = b.pick(rank(2, 3))
            b.emit(
                f"torch.cdist({x}, {b.floats((*b.shape(x)[:-2], 3, b.shape(x)[-1]), b.dtype_of(x))})"
            )
        case 2:
            x = b.pick(rank(2, 5))
            b.emit(f"F.prelu({x}, {b.positive((b.shape(x)[1],), b.dtype_of(x))})")
        case _:
            x = b.pick(rank(3, 5), lambda t: t.shape[-3] % 4 == 0)
            b.emit(f"F.pixel_shuffle({x}, 2)")


def by_itself(b: Builder) -> None:
    """A product written as arithmetic and a sum."""
    x = b.pick(is_float, lambda t: 1 <= t.dim() <= 3)
    k = b.shape(x)[-1]
    y = b.weight((b.r.choice(WIDTHS[:5]), k), b.dtype_of(x), k)
    if torch.Size(b.shape(x)).numel() * b.shape(y)[0] > 3000:
        raise Rejected("too large")
    b.emit(f"({x}[..., None, :] * {y}).sum(-1)")


OPERATORS = (
    (5, matmul), (5, linear), (4, dense), (2, coded), (2, masked), (1, integer_product), (2, transposed), (3, einsum), (2, added), (1, outer), (4, convolution), (3, tower), (2, pool), (5, norm),
    (3, attention), (2, resample), (2, other), (1, by_itself),
)  # fmt: skip
