"""How writes at computed positions are done."""

from monotile.plan.nodes import Method
from monotile.plan.places import Frozen


class Serial(Method, Frozen, frozen=True, tag="serial"):
    """A Scatter whose writes may collide. Threads share the dims at positions `parallel`, along which they never
    do; each walks the other dims in row-major order."""

    parallel: tuple[int, ...] = ()

    def describe(self) -> str:
        return f"serial, but for dims {list(self.parallel)}" if self.parallel else "serial"
