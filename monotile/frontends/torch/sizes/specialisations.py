"""Exports specialisations of a model that branches on sizes, as by `if x.shape[1] > self.most:`: one for each range of sizes that takes another path."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram

from monotile.errors import CaptureError
from monotile.frontends.torch.export import export
from monotile.frontends.torch.sizes.examples import dynamic_dims
from monotile.frontends.torch.sizes.ranges import FIXED, Ranges, ranges_of
from monotile.frontends.torch.sizes.size_one import (
    Call,
    exports_for_one,
    fails_only_for_one,
    resized,
)

_MAX_EXPORTS = 5  # of specialisations
_MAX_SPANS = 3  # of ranges that are exported for each
_NAME = re.compile(r"\b[a-z]\w*\b")
Ends = tuple[int, int]
_Key = tuple[Any, ...]


class _Box(NamedTuple):
    """The range of each symbol. scattered: only some sizes of the ranges count, such as the multiples of a number; the upper ends are among them."""

    ends: Mapping[str, Ends]
    scattered: bool = False


def specialised(
    exported: ExportedProgram, model: torch.nn.Module | ExportedProgram, call: Call, shapes: Any, results: Any
) -> Iterator[ExportedProgram]:  # fmt: skip
    """The exports of `model` for the sizes of `shapes` that `exported` does not support, those of 1 first.

    shapes: dynamic_shapes with which it was exported. results: as `export` takes it.
    """
    yield from exports_for_one(exported, model, call, results)
    if isinstance(model, ExportedProgram) or not shapes:
        return
    whole = _Whole(exported, ranges_of(exported), call)
    if (asked := _asked_for(whole, model, shapes)) is None:
        return
    todo, taken, known = [*_rest(whole.ranges, asked, ones=False)], [whole.ranges], set[_Key]()
    scattered = any(box.scattered for box in todo)
    for _ in range(_MAX_EXPORTS):
        box = todo.pop(0) if todo else _left(asked, taken) if scattered else None
        if box is None or (key := (*box.ends.items(), box.scattered)) in known:
            return
        known.add(key)
        try:
            found = _exported_for(whole, model, box, results)
        except CaptureError:  # a call of that size raises an error
            continue
        if found is None:
            continue
        taken.append(_renamed(ranges_of(found), whole.ranges, box))
        if not box.scattered:
            todo += _rest(taken[-1], box.ends)
        yield found


@dataclass(frozen=True)
class _Whole:
    """The first export of the model."""

    exported: ExportedProgram
    ranges: Ranges
    call: Call


def _asked_for(whole: _Whole, model: torch.nn.Module, shapes: Any) -> Mapping[str, Ends] | None:
    """The requested range of each symbol; None if unknown."""
    args, kwargs = tuple(whole.call[0]), dict(whole.call[1] or {})
    if (dims := dynamic_dims(model, args, kwargs, shapes)) is None:
        return None
    roots = ((id(x), d, getattr(dim, "root", dim)) for x, d, dim in dims)
    asked: dict[tuple[int, int], Ends] = {(x, d): (max(1, own.min), own.max) for x, d, own in roots}
    found: dict[str, Ends] = {}
    leaves = pytree.tree_leaves((args, kwargs))
    values = {n.name: n.meta.get("val") for n in whole.exported.graph.find_nodes(op="placeholder")}
    for x, name in zip(leaves, whole.exported.graph_signature.user_inputs, strict=False):
        value = values.get(str(name))
        for d, n in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(n, torch.SymInt) and (id(x), d) in asked:
                for symbol in n.node.expr.free_symbols:
                    found.setdefault(str(symbol), asked[id(x), d])
    return found if found.keys() == {n for n, _, _ in whole.ranges.of} else None


def _rest(ranges: Ranges, box: Mapping[str, Ends], *, ones: bool = True) -> Iterator[_Box]:
    """The parts of `box` that `ranges` excludes by conditions on a single size. None if `ranges` allows only one number, as for a size that became one.
    ones: whether sizes of 1 are parts; those that the first export excludes have exports of their own."""
    taken = dict(box)
    for name, low, high in ranges.of:
        own = [t for t in ranges.conditions if _only(t, name, ranges)]
        together = ranges.equal_to(name)
        first, last = box[name]
        alone = Ranges(((name, first, last),), tuple(own))
        held = {n for n in alone.values(name) if low <= n <= high}
        missing = [n for n in range(first, last + 1) if n not in held]
        if (
            not ones
            and 1 in missing
            and low <= 1
            and any(fails_only_for_one(ranges, t, name) for t in own)
        ):
            missing.remove(1)
        spans = [*_spans(missing)]
        if len(held) < 2 < last - first:
            continue
        if len(spans) > _MAX_SPANS:
            span = missing[0], missing[-1]
            yield _Box(taken | dict.fromkeys(together, span), scattered=True)
        else:
            yield from (_Box(taken | dict.fromkeys(together, span)) for span in spans)
        if len(held) <= last - first:
            taken |= dict.fromkeys(together, (min(held), max(held)))


def _left(asked: Mapping[str, Ends], taken: Sequence[Ranges]) -> _Box | None:
    """The sizes of symbols with conditions that none of `taken` supports, up to the largest; None if there are none."""
    conditions = " ".join(t for r in taken for t in r.conditions)
    names = sorted(asked.keys() & set(_NAME.findall(conditions)))
    own = [[*r.conditions, *(f"{low} <= {n} <= {high}" for n, low, high in r.of if n in names)] for r in taken]  # fmt: skip
    held = " or ".join(f"({' and '.join(x) or 'True'})" for x in own)
    ends = tuple(
        (n, min(2, asked[n][1]), asked[n][1]) for n in names
    )  # sizes of 1 have exports of their own
    found = Ranges(ends).values(f"(({held}), {', '.join(names)})") if names else ()
    left = [sizes for is_taken, *sizes in found if not is_taken]
    if not left:
        return None
    sizes = dict(zip(names, max(left, key=sum), strict=True))
    return _Box({**asked, **{n: (asked[n][0], k) for n, k in sizes.items()}}, scattered=True)


def _only(text: str, name: str, ranges: Ranges) -> bool:
    """Whether a condition involves only this symbol."""
    return bool(Ranges(tuple(x for x in ranges.of if x[0] == name)).values(text))


def _spans(numbers: list[int]) -> Iterator[Ends]:
    """Ascending numbers as ranges; two neighbours become two ranges, because PyTorch traces no range of 1 and 2."""
    begin = 0
    for k in range(1, len(numbers) + 1):
        if k == len(numbers) or numbers[k] != numbers[k - 1] + 1:
            first, last = numbers[begin], numbers[k - 1]
            yield from ((first, first), (last, last)) if last == first + 1 else ((first, last),)
            begin = k


def _exported_for(
    whole: _Whole, model: torch.nn.Module, box: _Box, results: Any
) -> ExportedProgram | None:
    """The export for `box`; None if it has other dynamic sizes."""
    names = [n for n, _, _ in whole.ranges.of]
    sizes = {n: high for n, (_, high) in box.ends.items()}
    open_ = {n: x for n, x in box.ends.items() if x[0] < x[1]}
    args, kwargs, shapes = resized(whole.exported, whole.ranges, whole.call, sizes, model.forward, open_)  # fmt: skip
    found = export(model, args, kwargs, results, shapes)
    fixed = tuple((names.index(n), box.ends[n][0]) for n in names if n not in open_)
    found.graph_module.meta[FIXED] = fixed
    return found if len(ranges_of(found).of) == len(open_) else None


def _renamed(now: Ranges, whole: Ranges, box: _Box) -> Ranges:
    """`now` in the symbols of the first export."""
    names = [n for n, _, _ in whole.of if box.ends[n][0] < box.ends[n][1]]
    pairs = dict(zip((n for n, _, _ in now.of), names, strict=True))
    of = tuple((pairs[n], low, high) for n, low, high in now.of)
    of += tuple((n, *box.ends[n]) for n, _, _ in whole.of if n not in names)
    return Ranges(of, tuple(_with_names(t, pairs) for t in now.conditions))


def _with_names(text: str, names: Mapping[str, str]) -> str:
    return _NAME.sub(lambda m: names.get(m[0], m[0]), text)
