"""A graph run several ways side by side: in its own types, in float64, and in float64 with rounding noise.

The noise says how far a correct answer may be from the exact one, so no operator needs a tolerance of its
own, and a value whose digits or whose place (a comparison, an arg max, a rounding) hang on rounding shows.
The sign of NaN, which arithmetic leaves open, is noise too: plus in one run, minus in the other.
"""

import warnings
import zlib
from collections.abc import Callable, Iterable

import torch

from tests.fuzz.graph import NARROW, SCOPE, WIDE, Graph, Leaf, defined, generator

# Relative noise on every result; several units in the last place, as a sum inside an operator rounds more than once.
NOISE = {
    torch.float64: 2.0**-48,
    torch.float32: 2.0**-20,
    torch.float16: 2.0**-9,
    torch.bfloat16: 2.0**-6,
}
LOST = 2.0**-48  # of terms near 1 that cancel in float64, which may give 0 for something small
SPREAD = 0.05  # of a tensor's magnitude: where rounding alone makes more, nothing can be compared
LARGEST = {True: 1e4, False: 1e6}  # of floats, of integers


class Rejected(Exception):
    """A statement that PyTorch does not take, or whose result depends on rounding."""


class Runs:
    """tensors by name: `narrow` in the graph's own types, `wide` in float64, `noisy` with noise."""

    def __init__(self, samples: int = 2) -> None:
        self.narrow: dict[str, torch.Tensor] = {}
        self.wide: dict[str, torch.Tensor] = {}
        self.noisy: list[dict[str, torch.Tensor]] = [{} for _ in range(samples)]

    def leaf(self, leaf: Leaf) -> None:
        value = leaf.value()
        exact = value.double() if value.is_floating_point() else value
        self.narrow[leaf.name] = value
        self.wide[leaf.name] = exact.clone()
        for k, run in enumerate(self.noisy):
            run[leaf.name] = _shaken(exact.clone(), value.dtype, leaf.name, k)

    def line(self, text: str) -> None:
        """Runs a statement. Raises Rejected; an update may then be half done, so start anew."""
        new = defined(text)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                exec(text, SCOPE | {"t": NARROW}, self.narrow)
                torch.set_default_dtype(torch.float64)
                for run in (self.wide, *self.noisy):
                    exec(text, SCOPE | {"t": WIDE}, run)
        except Exception as e:
            raise Rejected(f"{text}: {e}") from e
        finally:
            torch.set_default_dtype(torch.float32)
        for k, run in enumerate(self.noisy):
            held = {_memory(x) for n, x in run.items() if n not in new}
            for name in new:
                if (
                    0 in run[name].stride()
                ):  # elements that are one in memory get noise of their own
                    run[name] = run[name].clone()
                if _memory(run[name]) not in held:
                    _shaken(run[name], self.narrow[name].dtype, name, k)
        for name in new or list(self.narrow):
            self.check(name)

    def check(self, name: str) -> None:
        narrow, wide = self.narrow[name], self.wide[name]
        others = [run[name] for run in self.noisy]
        if any(x.shape != wide.shape for x in (narrow, *others)):
            raise Rejected(f"{name}: the shape depends on values")
        if wide.numel() and largest(wide) > LARGEST[wide.is_floating_point()]:
            raise Rejected(f"{name}: too large")
        if not wide.is_floating_point():
            if any(not torch.equal(x, wide) for x in (narrow, *others)):
                raise Rejected(f"{name}: rounding decides a discrete value")
        elif any(not same_places(x.double(), wide) for x in (narrow, *others)):
            raise Rejected(f"{name}: rounding decides what is finite")
        elif self.spread(name) > SPREAD * largest(wide):
            raise Rejected(f"{name}: ill-conditioned")

    def spread(self, name: str) -> float:
        """How far rounding moves a value: the largest difference from float64."""
        wide = self.wide[name]
        others = (self.narrow[name], *(run[name] for run in self.noisy))
        return max(largest(x.double() - wide) for x in others)

    def tolerance(self, name: str) -> float:
        narrow = self.narrow[name]
        if not narrow.is_floating_point():
            return 0.0
        return 4 * self.spread(name) + 4 * NOISE[narrow.dtype] * largest(self.wide[name]) + LOST


def _shaken(x: torch.Tensor, dtype: torch.dtype, name: str, k: int) -> torch.Tensor:
    """`x` with the noise of run `k`, in place, so that views of it see the same."""
    if x.is_floating_point() and x.numel() and 0 not in x.stride():
        g = generator(zlib.crc32(f"{name}/{k}".encode()))
        u = torch.rand(x.shape, generator=g, dtype=x.dtype)
        x.mul_(1 + NOISE[dtype] * (2 * u - 1))
        x[x.isnan()] = torch.nan if k % 2 else -torch.nan
    return x


def run(graph: Graph) -> Runs:
    """Raises Rejected where the graph's answer is no clear one."""
    runs = Runs()
    for leaf in graph.leaves:
        runs.leaf(leaf)
    for line in graph.lines:
        runs.line(line)
    return runs


def differences(runs: Runs, graph: Graph, found: Iterable[torch.Tensor]) -> list[str]:
    """What is wrong with `found`, the outputs and then the leaves, in words; nothing if it is right."""
    wanted = (*graph.outputs, *(leaf.name for leaf in graph.leaves))
    return [
        f"{name}: {problem}"
        for name, x in zip(wanted, found, strict=True)
        if (problem := _difference(runs, name, x))
    ]


def _difference(runs: Runs, name: str, found: torch.Tensor) -> str:
    narrow, wide = runs.narrow[name], runs.wide[name]
    if found.dtype != narrow.dtype or found.shape != narrow.shape:
        return f"{found.dtype} {list(found.shape)}, not {narrow.dtype} {list(narrow.shape)}"
    if not narrow.is_floating_point():
        wrong = int((found != narrow).sum())
        return f"{wrong} of {narrow.numel()} elements differ" if wrong else ""
    if not same_places(found.double(), wide):
        return "NaN or infinity in other places"
    off, limit = largest(found.double() - wide), runs.tolerance(name)
    return (
        f"off by {off:.3g}, {limit:.3g} allowed, largest {largest(wide):.3g}" if off > limit else ""
    )


def same_places(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether NaN, infinity and minus infinity stand at the same places."""
    kinds: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.isnan,
        torch.isposinf,
        torch.isneginf,
    ]
    return all(torch.equal(kind(x), kind(y)) for kind in kinds)


def largest(x: torch.Tensor) -> float:
    """The largest finite magnitude; 0 if there is none."""
    if x.dtype is torch.bool:
        return 1.0
    finite = x[torch.isfinite(x)].abs() if x.is_floating_point() else x.abs()
    return float(finite.max()) if finite.numel() else 0.0


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr() or id(x)
