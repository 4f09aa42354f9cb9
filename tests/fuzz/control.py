"""Control flow: branches by a value, loops that end by one, scans."""

from tests.fuzz.builder import Builder, Operators, is_finite, is_float
from tests.fuzz.networks import project
from tests.fuzz.runs import Rejected

# Of two values of one shape and type; the results have these as well.
TERMS = (
    "torch.tanh(a) + b", "a * 0.5 - b", "torch.relu(a) * b", "a - a.mean()", "torch.where(a > 0, b, a)", "(a - b).abs().clamp(max=3.0)",
    "a * torch.sigmoid(b.mean())", "b * 0.25", "a.clone()",
)  # fmt: skip
ROWS = ("a.softmax(-1) + b", "a.cumsum(-1) * 0.125", "a.flip(-1) - b")
SHRINKS = ("a * 0.5", "torch.tanh(a) * 0.5", "(a + b) * 0.25", "a * 0.75 - b * 0.125")


def _pair(b: Builder) -> tuple[str, str]:
    """Two values of one shape and type."""
    x = b.pick(is_float, is_finite)
    if not b.value(x).numel():
        raise Rejected("without elements nothing decides")
    y = project(b, b.pick(is_float, is_finite), x)
    return x, y if y != x else b.emit(f"{x} * 0.5")[0]


def _term(b: Builder, like: str) -> str:
    return b.r.choice((*TERMS, *ROWS) if b.shape(like) else TERMS)


def cond(b: Builder, _: Operators) -> None:
    x, y = _pair(b)
    (p,) = b.emit(f"{x}.float().mean() {b.r.choice('<>')} {b.scalar()} * 0.1")
    then, otherwise = _term(b, x), _term(b, x)
    b.emit(f"torch.cond({p}, lambda a, b: {then}, lambda a, b: {otherwise}, ({x}, {y}))")


def loop(b: Builder, _: Operators) -> None:
    """Until a value is small, some iterations at most; the inner side may branch."""
    x, y = _pair(b)
    term, most = b.r.choice(SHRINKS), b.r.randint(0, 5)
    if b.chance(0.3):
        term = f"torch.cond(n % 2 == 0, lambda a, b: {term}, lambda a, b: a * 0.5, (a, b))"
    start = "torch.zeros((), dtype=torch.int64)"
    b.emit(
        f"while_loop(lambda n, a, b: (n < {most}) & (a.float().abs().amax() > {b.r.choice((0.05, 0.3, 1.0))}),"
        f" lambda n, a, b: (n + 1, {term}, b.clone()), ({start}, {x}, {y}))",
        3,
    )


def scanned(b: Builder, _: Operators) -> None:
    """Over the rows of a value, which begins with one of them."""
    x = b.pick(is_float, is_finite, lambda v: v.dim() > 1 and 0 < v.shape[0] < 12)
    if not b.value(x).numel():
        raise Rejected("without elements there are no rows")
    b.emit(f"scan(lambda a, b: (torch.tanh(a) * 0.5 + b, {_term(b, x)}), {x}[0] * 0.5, {x})", 2)


CONTROL = ((4, cond), (4, loop), (2, scanned))


def control(b: Builder, operators: Operators) -> None:
    (made,) = b.r.choices([f for _, f in CONTROL], weights=[w for w, _ in CONTROL])
    made(b, operators)
