"""Reading and writing at positions that are data, and updates in place."""

from tests.fuzz.builder import Builder, is_float
from tests.fuzz.pointwise import is_int, partner
from tests.fuzz.runs import Rejected
from tests.fuzz.views import has_dims, subscript


def place(b: Builder) -> tuple[str, int, int]:
    """A value, one of its dimensions (from the start) and that one's size, which is not 0."""
    x = b.pick(has_dims)
    d = b.r.randrange(len(b.shape(x)))
    n = b.shape(x)[d]
    if n == 0:
        raise Rejected("empty")
    return x, d, n


def along(b: Builder, x: str, d: int) -> list[int]:
    """A shape for indices along `d`: no larger than the value elsewhere."""
    shape = [b.r.randint(1, n) if n and b.chance(0.3) else n for n in b.shape(x)]
    shape[d] = b.r.choice((1, 2, 3, 5))
    return shape


def rows(b: Builder) -> None:
    x, d, n = place(b)
    index = b.integers(0, n, (b.r.choice((1, 2, 3, 7)),), b.r.choice(("i64", "i64", "i32")))
    b.emit(f"torch.index_select({x}, {d}, {index})")


def computed(b: Builder) -> None:
    """An index that the network computes."""
    x, _, _ = place(b)
    at = b.pick(is_int, lambda t: 0 < t.dim() < 3)
    b.emit(f"{x}[{at}.to(t.i64) % {b.shape(x)[0]}]")


def gather(b: Builder) -> None:
    x, d, n = place(b)
    name = b.r.choice(("torch.gather", "torch.take_along_dim"))
    index = b.integers(0, n, along(b, x, d))
    b.emit(
        f"torch.gather({x}, {d}, {index})"
        if name == "torch.gather"
        else f"torch.take_along_dim({x}, {index}, {d})"
    )


def fancy(b: Builder) -> None:
    x, d, n = place(b)
    shape = b.r.choice(((2,), (3,), (2, 3), (1,)))
    at = [":"] * d + [b.integers(-n, n, shape)]
    if len(b.shape(x)) > d + 1 and b.shape(x)[d + 1] and b.chance(0.4):
        at.append(b.integers(0, b.shape(x)[d + 1], b.r.choice(((1,), shape))))
    b.emit(f"{x}[{', '.join(at)}]")


def embedding(b: Builder) -> None:
    n, width = b.r.choice((5, 11, 30)), b.r.choice((3, 8, 16))
    table = b.floats((n, width), b.dtype)
    ids = b.integers(0, n, b.new_shape(b.r.choice((1, 2)))[:2] or (3,))
    b.emit(f"F.embedding({ids}, {table})")


def scatter(b: Builder) -> None:
    x, d, n = place(b)
    shape = along(b, x, d)
    shape[d] = min(shape[d], n)
    kind = b.dtype_of(x)
    if kind == "bool":
        raise Rejected("sums of truths")
    source = (
        b.floats(shape, kind)
        if kind in ("f16", "bf16", "f32", "f64")
        else b.integers(-3, 4, shape, kind)
    )
    match b.r.randrange(4):
        case 0:
            b.emit(f"torch.scatter({x}, {d}, {b.distinct(n, shape, d)}, {source})")
        case 1:
            b.emit(f"torch.scatter_add({x}, {d}, {b.integers(0, n, shape)}, {source})")
        case 2:
            b.emit(
                f"torch.scatter({x}, {d}, {b.integers(0, n, shape)}, {b.scalar() if is_float(b.value(x)) else 1})"
            )
        case _:
            how = b.r.choice(("amax", "amin", "sum", "mean", "prod"))
            same = ", include_self=False" if b.chance(0.3) else ""
            b.emit(
                f'torch.scatter_reduce({x}, {d}, {b.integers(0, n, shape)}, {source}, "{how}"{same})'
            )


def whole_rows(b: Builder) -> None:
    x, d, n = place(b)
    if not is_float(b.value(x)):
        raise Rejected("floats are enough")
    k = b.r.randint(1, min(4, n))
    shape = list(b.shape(x))
    shape[d] = k
    source = b.floats(shape, b.dtype_of(x))
    match b.r.randrange(4):
        case 0:
            b.emit(f"torch.index_add({x}, {d}, {b.integers(0, n, (k,))}, {source})")
        case 1:
            b.emit(f"torch.index_copy({x}, {d}, {b.distinct(n, (k,))}, {source})")
        case 2:
            b.emit(f"torch.index_fill({x}, {d}, {b.integers(0, n, (k,))}, 0.5)")
        case _:
            first = "" if d == 0 else "None, " * d
            b.emit(
                f"{x}.index_put(({first}{b.integers(0, n, (k,))},), {b.scalar_tensor(x)}, accumulate=True)"
            )


def select_scatter(b: Builder) -> None:
    """Of a contiguous value: PyTorch keeps a view's strides, and overlapping elements change together."""
    x, d, n = place(b)
    if not is_float(b.value(x)):
        raise Rejected("floats are enough")
    rest = list(b.shape(x))
    del rest[d]
    kind = b.dtype_of(x)
    if b.chance(0.5):
        source = b.floats(rest, kind)
        b.emit(f"torch.select_scatter({x}.contiguous(), {source}, {d}, {b.r.randrange(n)})")
    else:
        start = b.r.randrange(n)
        rest.insert(d, (n - start + 1) // 2)
        source = b.floats(rest, kind)
        b.emit(f"torch.slice_scatter({x}.contiguous(), {source}, {d}, {start}, {n}, 2)")


def one_hot(b: Builder) -> None:
    x = b.pick(is_int, lambda t: t.dim() < 3)
    b.emit(f"F.one_hot({x}.to(t.i64) % 5, 5)")


def _apart(b: Builder, x: str, y: str) -> str:
    """`y`, or a copy if it is another view of what `x` is: PyTorch then reads what it has just written, or not."""
    one, other = b.value(x), b.value(y)
    shared = one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
    return f"{y}.clone()" if shared and x != y else y


def update(b: Builder) -> None:
    """A value changed in place; views of it, made before, see that."""
    x = b.pick(has_dims, is_float)
    if b.chance(0.3 if b.states else 0.6) or (x[0] != "v" and not b.states):
        (x,) = b.emit(f"{x}.clone()")
        if b.chance(0.3):
            b.emit(f"{x}[{subscript(b, x)}]")
        if b.chance(0.3):
            b.emit(f"{x}.transpose(0, -1)")
    y = b.scalar() if b.chance(0.4) else _apart(b, x, partner(b, x, b.dtype_of(x)))
    match b.r.randrange(9):
        case 0:
            b.update(f"{x}.{b.r.choice(('add_', 'mul_', 'sub_'))}({y})")
        case 1 | 2:
            b.update(f"{x}[{subscript(b, x)}] = {b.scalar()}")
        case 3 | 4:
            cut = subscript(b, x)
            (part,) = b.emit(f"{x}[{cut}] * 0.5")
            value = b.r.choice((part, b.floats(b.shape(part), b.dtype_of(x))))
            b.update(f"{x}[{cut}] {b.r.choice(('=', '=', '+=', '*='))} {value}")
        case 5:
            b.update(f"{x}.{b.r.choice(('relu_', 'sigmoid_', 'tanh_', 'neg_', 'zero_'))}()")
        case 6:
            b.update(f"{x}.masked_fill_({b.mask(b.shape(x))}, {b.scalar()})")
        case 7:
            k = b.r.randint(min(1, b.shape(x)[0]), b.shape(x)[0])  # none of no rows
            b.update(
                f"{x}[{b.distinct(b.shape(x)[0], (k,))}] = {b.floats((k, *b.shape(x)[1:]), b.dtype_of(x))}"
            )
        case _:
            shape = along(b, x, 0)
            b.update(
                f"{x}.scatter_add_(0, {b.integers(0, b.shape(x)[0], shape)}, {b.floats(shape, b.dtype_of(x))})"
            )


OPERATORS = (
    (2, rows), (2, computed), (3, gather), (3, fancy), (2, embedding), (3, scatter), (2, whole_rows), (1, select_scatter),
    (1, one_hot), (6, update),
)  # fmt: skip
