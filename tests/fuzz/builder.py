"""Grows a graph line by line. Every line is run as it is added, so shapes, types and values are known."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

import torch

from tests.fuzz.graph import FLOATS, NARROW, Graph, Leaf, names
from tests.fuzz.runs import Rejected, Runs

SIZES = (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31)
LIMIT = 3000  # elements of a value
NAMES = {dtype: name for name, dtype in vars(NARROW).items()}
Test = Callable[[torch.Tensor], bool]


def is_float(x: torch.Tensor) -> bool:
    return x.is_floating_point()


def is_finite(x: torch.Tensor) -> bool:
    return bool(torch.isfinite(x).all())


class Builder:
    """dtype: the element type that most of the network has, by its name in `t`."""

    def __init__(self, random: Random) -> None:
        self.r = random
        self.dtype = random.choices(FLOATS, weights=(8, 60, 18, 14))[0]
        self.leaves: list[Leaf] = []
        self.lines: list[str] = []
        self.pool: list[str] = []
        self.runs = Runs()
        self.states = self.chance(0.2)  # whether arguments and parameters may change
        self.iteration = 0
        self.parameters = (
            0.0  # the share of leaves that are parameters, whatever they are meant to be
        )
        self.templates: list[str] | None = None
        self._count = 0
        self._seed = random.randrange(10**6)

    def graph(self) -> Graph:
        """With every value that nothing reads as an output, and some others."""
        read = {n for line in self.lines for n in names(line.partition(" = ")[2] or line)}
        values = [n for n in self.runs.narrow if n.startswith("v")]
        chosen = [n for n in values if n not in read or self.chance(0.08)]
        if self.chance(0.05):
            chosen += [self.r.choice(list(self.runs.narrow))]
        chosen = [n for n in chosen if n[0] != "p"] or values[-1:]
        return Graph(tuple(self.leaves), tuple(self.lines), tuple(chosen)).pruned()

    # Values.

    def value(self, name: str) -> torch.Tensor:
        return self.runs.narrow[name]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.value(name).shape)

    def dtype_of(self, name: str) -> str:
        return NAMES[self.value(name).dtype]

    def pick(self, *tests: Test) -> str:
        """A value of the pool that passes the tests, late ones more often. Raises Rejected."""
        fitting = [n for n in self.pool if all(test(self.value(n)) for test in tests)]
        if not fitting:
            raise Rejected("no value fits")
        if self.chance(0.5):
            fitting = fitting[-3:]
        return self.r.choice(fitting)

    # Random choices.

    def chance(self, probability: float) -> bool:
        return self.r.random() < probability

    def size(self) -> int:
        return 0 if self.chance(0.004) else self.r.choice(SIZES)

    def new_shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.r.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5)) if rank is None else rank
        shape = [self.size() for _ in range(rank)]
        while torch.Size(shape).numel() > LIMIT:
            shape[self.r.randrange(rank)] = self.r.choice((1, 2, 3))
        return tuple(shape)

    def dim(self, name: str) -> int:
        """A dimension of the value; counted from the end half of the time."""
        rank = len(self.shape(name))
        if rank == 0:
            raise Rejected("a scalar has no dimension")
        at = self.r.randrange(rank)
        return at - rank if self.chance(0.5) else at

    def scalar(self) -> str:
        return self.r.choice(("0.5", "2", "-1.25", "3", "0.1", "-2", "1", "1.5"))

    def scalar_tensor(self, like: str) -> str:
        return f"torch.full((), {self.scalar()}, dtype=t.{self.dtype_of(like)})"

    # Leaves.

    def leaf(self, expression: str, *, parameter: bool) -> str:
        parameter = parameter or self.chance(self.parameters)
        name = f"{'p' if parameter else 'x'}{len(self.leaves)}"
        made = Leaf(name, expression)
        self.leaves.append(made)
        self.runs.leaf(made)
        return name

    def seed(self) -> int:
        self._seed += 1
        return self._seed

    def floats(
        self,
        shape: Sequence[int],
        dtype: str | None = None,
        *,
        parameter: bool | None = None,
        scale: float = 1.0,
    ) -> str:
        by = "" if scale == 1.0 else f" * {scale:.3g}"
        if parameter is None:
            parameter = self.chance(0.6)
        text = f"(torch.randn({tuple(shape)}, generator=g({self.seed()})){by}).to(t.{dtype or self.dtype})"
        return self.leaf(text, parameter=parameter)

    def weight(self, shape: Sequence[int], dtype: str, fan: int) -> str:
        return self.floats(shape, dtype, parameter=self.chance(0.85), scale=max(fan, 1) ** -0.5)

    def positive(self, shape: Sequence[int], dtype: str) -> str:
        text = f"(torch.rand({tuple(shape)}, generator=g({self.seed()})) + 0.5).to(t.{dtype})"
        return self.leaf(text, parameter=self.chance(0.6))

    def integers(self, low: int, high: int, shape: Sequence[int], dtype: str = "i64") -> str:
        """low <= value < high."""
        text = f"torch.randint({low}, {high}, {tuple(shape)}, generator=g({self.seed()}))"
        text += "" if dtype == "i64" else f".to(t.{dtype})"
        return self.leaf(text, parameter=self.chance(0.3))

    def distinct(self, n: int, shape: Sequence[int], dim: int = 0) -> str:
        """Indices below `n` that are distinct along `dim`."""
        full = list(shape)
        full[dim] = n
        text = f"torch.rand({tuple(full)}, generator=g({self.seed()})).argsort({dim}).narrow({dim}, 0, {shape[dim]})"
        return self.leaf(text, parameter=self.chance(0.3))

    def mask(self, shape: Sequence[int]) -> str:
        text = f"torch.rand({tuple(shape)}, generator=g({self.seed()})) > 0.5"
        return self.leaf(text, parameter=self.chance(0.3))

    # Lines.

    def emit(self, expression: str, count: int = 1) -> list[str]:
        """New values `v7, v8 = expression`. Raises Rejected, and nothing is left of it."""
        new = [f"v{self._count + k}" for k in range(count)]
        self._count += count
        template = f"{', '.join(new)}{',' if count == 1 and expression.endswith('.unbind()') else ''} = {expression}"
        line = template.replace("#", str(self.iteration))
        try:
            self.runs.line(line)
            for name in new:
                self._accept(name)
        except Rejected:
            for run in (self.runs.narrow, self.runs.wide, *self.runs.noisy):
                for name in new:
                    run.pop(name, None)
            raise
        self._keep(line, template)
        self.pool += new
        return new

    def update(self, statement: str) -> None:
        """A statement that changes a value in place. Raises Rejected."""
        line = statement.replace("#", str(self.iteration))
        before = {leaf.name: self.value(leaf.name)._version for leaf in self.leaves}
        try:
            self.runs.line(line)
            if not self.states and any(self.value(n)._version != v for n, v in before.items()):
                raise Rejected("an argument or a parameter would change")
        except Rejected:
            self._replay()
            raise
        self._keep(line, statement)

    def _keep(self, line: str, template: str) -> None:
        self.lines.append(line)
        if self.templates is not None:
            self.templates.append(template)

    def _accept(self, name: str) -> None:
        x = self.value(name)
        if not isinstance(x, torch.Tensor) or x.dtype not in NAMES:
            raise Rejected("no tensor of a known type")
        if x.numel() > LIMIT or x.dim() > 6:
            raise Rejected("too many elements")
        if x.is_floating_point() and not is_finite(x) and self.chance(0.7):
            raise Rejected("enough infinities")
        if x.numel() == 0 and self.chance(0.8):
            raise Rejected("enough empty values")

    def _replay(self) -> None:
        self.runs = Runs()
        for leaf in self.leaves:
            self.runs.leaf(leaf)
        for line in self.lines:
            self.runs.line(line)

    @contextmanager
    def only(self, pool: Sequence[str]) -> Iterator[None]:
        """Inside, operators read these values and what is made of them."""
        outer, self.pool = self.pool, list(pool)
        try:
            yield
        finally:
            self.pool = outer + [n for n in self.pool if n not in outer]


Operators = tuple[tuple[int, Callable[[Builder], None]], ...]  # with how often each is chosen
