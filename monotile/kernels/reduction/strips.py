"""Strips of partial results of neighbouring outputs, on the CPU."""

from dataclasses import dataclass

from monotile.ir.expr import Axis


@dataclass(frozen=True, slots=True)
class Strip:
    """Partial results of outputs side by side: an array `name` of the C type `kind`. lane: runs over them. count: text of how many there are."""

    name: str
    kind: str
    lane: Axis
    count: str

    @property
    def slot(self) -> str:
        """Text of the partial result of the output `lane`."""
        return f"{self.name}[{self.lane.name}]"
