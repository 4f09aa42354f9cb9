"""Random numbers as expressions, by counters: a draw depends on the seed, the call, its place in the graph and its element alone.

The key of a draw is philox(2**20 * calls + number, seed), with philox(iteration, key) for each loop around it; element e has the 64 bits
philox(e, key). So no two draws share numbers, in whatever order they run, and rolled layers differ in a literal.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

from monotile.ir.dtype import DType
from monotile.ir.expr import Axis, Binary, Expr, Load, Tensor, add, idx, mul
from monotile.ir.program import Compute, Weight, compute
from monotile.ir.signature import RANDOM_STATE

MOST = 1 << 20  # draws of one graph


class Draws:
    """The draws of one graph. unique: makes a name of its own of a name."""

    def __init__(self, unique: Callable[[str], str]) -> None:
        self._unique = unique
        self._count = 0

    @cached_property
    def state(self) -> Tensor:
        """int64 [2], the seed and the calls so far."""
        return Tensor(self._unique("random_state"), (2,), DType.I64)

    @property
    def used(self) -> bool:
        return self._count > 0

    @property
    def weight(self) -> Weight:
        return Weight(self.state, (RANDOM_STATE,))

    def key(self, loops: Sequence[Axis]) -> Expr:
        """The key of a further draw inside `loops`."""
        seed, calls = Load(self.state, (idx(0),)), Load(self.state, (idx(1),))
        key = Binary("philox", add(mul(calls, idx(MOST)), idx(self._count)), seed)
        for axis in loops:
            key = Binary("philox", axis, key)
        self._count += 1
        return key

    def next_state(self) -> Compute:
        """The state after the call: one call more."""
        out = Tensor(self._unique(f"{self.state.name}_next"), self.state.shape, self.state.dtype)
        return compute(out, lambda i: add(Load(self.state, (i,)), i))
