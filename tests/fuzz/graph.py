"""A network as text: leaves, straight-line statements, outputs. Easy to run, to shrink and to print."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

NAME = re.compile(r"\b[xpv]\d+\b")
NARROW = SimpleNamespace(
    f64=torch.float64,
    f32=torch.float32,
    f16=torch.float16,
    bf16=torch.bfloat16,
    i64=torch.int64,
    i32=torch.int32,
    i16=torch.int16,
    i8=torch.int8,
    bool=torch.bool,
)
FLOATS = ("f64", "f32", "f16", "bf16")
# The same network in float64: its text names element types through `t` alone.
WIDE = SimpleNamespace(**(vars(NARROW) | dict.fromkeys(FLOATS, torch.float64)))


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SCOPE: dict[str, Any] = {"torch": torch, "F": F, "g": generator, "while_loop": while_loop, "scan": scan}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Leaf:
    """An argument (`x1`) or a parameter (`p1`), and the expression that makes its value."""

    name: str
    expression: str

    @property
    def is_parameter(self) -> bool:
        return self.name.startswith("p")

    def value(self) -> torch.Tensor:
        return eval(self.expression, SCOPE | {"t": NARROW})


@dataclass(frozen=True, slots=True)
class Graph:
    """lines: Python statements over the names of leaves and of `v` values, `torch`, `F` and the types in `t`."""

    leaves: tuple[Leaf, ...]
    lines: tuple[str, ...]
    outputs: tuple[str, ...]

    def pruned(self) -> "Graph":
        """Without lines and leaves that no output needs; updates in place stay."""
        live = set(self.outputs)
        kept: list[str] = []
        for line in reversed(self.lines):
            new = defined(line)
            if not new or not live.isdisjoint(new):
                live.update(names(line))
                kept.append(line)
        leaves = tuple(leaf for leaf in self.leaves if leaf.name in live)
        return replace(self, leaves=leaves, lines=tuple(kept[::-1]))


def names(text: str) -> list[str]:
    return NAME.findall(text)


def defined(line: str) -> list[str]:
    """What a line gives a name to; none for an update in place."""
    left, equals, _ = line.partition(" = ")
    return names(left) if equals and re.fullmatch(r"v\d+(, v\d+)*,?", left) else []


def renamed(text: str, to: Mapping[str, str]) -> str:
    return NAME.sub(lambda m: to.get(m[0], m[0]), text)


def forward(graph: Graph, types: SimpleNamespace) -> Any:
    """The function of the arguments, then the parameters."""
    space = SCOPE | {"t": types}
    exec(_definition(graph, "forward", [leaf.name for leaf in graph.leaves]), space)
    return space["forward"]


def _definition(graph: Graph, name: str, arguments: list[str], first: tuple[str, ...] = ()) -> str:
    lines = [*first, *graph.lines, f"return {', '.join(graph.outputs)},"]
    return "\n    ".join([f"def {name}({', '.join(arguments)}):", *lines])


class Network(torch.nn.Module):
    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.body = forward(graph, NARROW)
        self.order = [leaf.name for leaf in graph.leaves]
        for leaf in graph.leaves:
            if leaf.is_parameter:
                self.register_buffer(leaf.name, leaf.value())

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = iter(arguments)
        return self.body(*(getattr(self, n) if n[0] == "p" else next(given) for n in self.order))


def arguments(graph: Graph) -> tuple[torch.Tensor, ...]:
    return tuple(leaf.value() for leaf in graph.leaves if not leaf.is_parameter)


def module(graph: Graph) -> str:
    """`graph` as a Python module of its own that compares Monotile with eager PyTorch."""
    held = [leaf for leaf in graph.leaves if leaf.is_parameter]
    given = [leaf for leaf in graph.leaves if not leaf.is_parameter]
    used = "\n".join([*graph.lines, *(leaf.expression for leaf in graph.leaves)])

    def spelled(text: str) -> str:
        return re.sub(r"\bt\.(\w+)", lambda m: str(getattr(NARROW, m[1])), text)

    body = _definition(
        graph,
        "forward",
        ["self", *(x.name for x in given)],
        tuple(f"{p.name} = self.{p.name}" for p in held),
    )
    parts = [
        "import torch",
        "import torch.nn.functional as F" if "F." in used else "",
        *(
            f"from torch._higher_order_ops.{n} import {n}"
            for n in ("scan", "while_loop")
            if f"{n}(" in used
        ),
        "import monotile",
        "",
        "",
    ]
    if "g(" in used:
        parts += ["def g(seed):", "    return torch.Generator().manual_seed(seed)", "", ""]
    parts += ["class Model(torch.nn.Module):"]
    if held:
        parts += ["    def __init__(self):", "        super().__init__()"]
        parts += [f'        self.register_buffer("{p.name}", {p.expression})' for p in held] + [""]
    parts += ["    " + line for line in body.splitlines()]
    parts += ["", "", f"args = ({''.join(x.expression + ', ' for x in given)})"]
    parts += ["model = Model().eval()", 'fast = monotile.compile(model, args, target="cpu")']
    parts += ["for found, expected in zip(fast(*args), model(*args)):"]
    parts += ["    torch.testing.assert_close(found, expected, equal_nan=True)", ""]
    return spelled("\n".join(p for k, p in enumerate(parts) if p or k > 2))
