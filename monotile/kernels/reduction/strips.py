"""Strips of partial results of neighbouring outputs, on the CPU."""

from dataclasses import dataclass

from monotile.ir.expr import Axis


@dataclass(frozen=True, slots=True)
class Strip:
    """Partial results of neighbouring outputs: an array `name` of the C type `kind`. lane: the variable that runs over them. count: text of
    their number."""

    name: str
    kind: str
    lane: Axis
    count: str

    @property
    def slot(self) -> str:
        """Text of the partial result of output `lane`."""
        return f"{self.name}[{self.lane.name}]"
