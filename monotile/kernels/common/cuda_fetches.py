"""Loads of several turns of a loop that are issued before any is used, in steps: a step's addresses may depend on what the steps before it loaded.

Each step is a functor `fetch_NAME(variable, results of earlier steps...)`, whose results are kept as whole words for each turn: elements that are
narrower would be unpacked, and waited for, where they are loaded.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from monotile.codegen.packs import LANE
from monotile.codegen.vector import VectorEmitter
from monotile.codegen.writer import Writer
from monotile.ir.expr import Axis, Expr, Load, Select, axes_of
from monotile.kernels.common.cuda_prefetch import LookedUp


@dataclass(frozen=True, slots=True)
class Fetch:
    """A step. name: of its functor, and of its results by turn. after: the steps whose results it takes."""

    name: str
    after: tuple[str, ...] = ()

    @property
    def now(self) -> str:
        """The results of the current turn."""
        return f"{self.name}_now"

    def declare(self, w: Writer, turns: int, prefix: str = "") -> None:
        """Declares the results of all turns."""
        given = ", ".join(["0", *(f"{x}[0].whole()" for x in self.after)])
        kind = f"decltype(mt::words(fetch_{self.name}({given})))"
        w.write(f"{kind} {prefix}{self.name}[{turns}]{{}};")

    def load(self, w: Writer, variable: str, prefix: str = "") -> None:
        """Loads those of a turn."""
        given = ", ".join([variable, *(f"{x}[turn].whole()" for x in self.after)])
        w.write(f"{prefix}{self.name}[turn] = mt::words(fetch_{self.name}({given}));")

    def unpack(self, w: Writer) -> None:
        """Names those of the current turn, for their use."""
        w.write(f"const auto {self.now} = {self.name}[turn].whole();")
        w.define(self.now)


def look_up(
    e: VectorEmitter, known: LookedUp, wanted: Mapping[Load, Expr], width: int, variable: str
) -> tuple[list[Fetch], dict[Hashable, str]]:
    """Writes the functors for the look-ups `wanted` among `known`, and for their indices. Returns their steps, and the texts of the values once they
    are unpacked; nothing if no look-up can be fetched. variable: the functors' first argument, of which the indices are functions."""
    leading, lane = known.leading_to(wanted), Axis(LANE, width)
    apart = {x: when for x, when in wanted.items() if width == 1 or lane in axes_of(x)}
    held = {x for step in leading for x in step} | apart.keys()
    alike = {x: when for x, when in wanted.items() if x not in held}
    steps = [(step, 1) for step in (*leading, alike) if step]
    steps += [(apart, width)] if apart else []
    fetches, told = list[Fetch](), dict[Hashable, str]()
    for step, lanes in steps:
        name = e.writer.fresh("there" if step is apart else "places")
        before = [f.now for f in fetches]
        made = Fetch(name, tuple(f.name for f in fetches))
        given = "".join(f", const auto& {x}" for x in before)
        head = f"auto fetch_{name} = [&](idx {variable}{given})"
        with e.writer.open(head, [variable, *before], fence=True, tail=";") as block:
            block.names.update(told)
            found = held_now(e, step, lanes, made)
        if found:
            fetches.append(made)
            told |= found
    return fetches, told


def held_now(
    e: VectorEmitter, wanted: Mapping[Load, Expr] | Mapping[Load | Select, Expr], width: int, fetch: Fetch, *, unaligned: bool = False,
) -> dict[Hashable, str]:  # fmt: skip
    """What `held` gives, in the functor of a step."""
    e.now = True
    found = e.held(wanted, width, fetch.now, unaligned=unaligned)
    e.now = False
    return found
