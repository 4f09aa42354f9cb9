"""The networks of `bench.control_flow` as they run without a compiler for control flow: the host decides what comes next and launches it.

One function each: given the model, its arguments and a way to make a step fast, it gives a call that takes nothing. A step takes nothing and
gives nothing either, it reads and writes tensors that stay where they are, so that it can be captured in a CUDA graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.zoo.recurrences import NASRNN, TreeLSTM, WordDecoder
from bench.zoo.skipnet import SkipNet

Step = Callable[[], None]
Faster = Callable[[Step], Step]
Args = Sequence[Tensor]


def _store(places: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for place, value in zip(places, values, strict=True):
        place.copy_(value)


def nasrnn(model: NASRNN, args: Args, faster: Faster) -> Callable[[], Any]:
    """The host knows how many steps there are, and waits for none of them."""
    x, count = args
    t, h, c = torch.zeros_like(count), torch.zeros_like(x[0]), torch.zeros_like(x[0])

    def step() -> None:
        _store((h, c), model.step(x.index_select(0, t[None]).squeeze(0), h, c))
        t.add_(1)

    run, steps = faster(step), int(count)

    def call() -> tuple[Tensor, Tensor]:
        for state in (t, h, c):
            state.zero_()
        for _ in range(steps):
            run()
        return h.clone(), c.clone()

    return call


def word_decoder(model: WordDecoder, args: Args, faster: Faster) -> Callable[[], Any]:
    """The host waits for every word, and asks whether it is the last."""
    first, told, stop = args
    n, word, h, c = torch.zeros_like(stop), first.clone(), told.clone(), torch.zeros_like(told)
    written = torch.zeros(model.most, dtype=torch.int64, device=word.device)

    def step() -> None:
        _store((word, h, c), model.step(word, h, c))
        written.index_copy_(0, n[None], word)
        n.add_(1)

    run, last = faster(step), int(stop)

    def call() -> tuple[Tensor, Tensor]:
        _store((n, word, h, c, written), (n * 0, first, told, c * 0, written * 0))
        for _ in range(model.most):
            run()
            if int(word) == last:
                break
        return n.clone(), written.clone()

    return call


def tree_lstm(model: TreeLSTM, args: Args, faster: Faster) -> Callable[[], Any]:
    """The host knows the tree: it launches the step of a leaf or that of an inner node, which find their places on the device."""
    nodes, count = args
    k, top = torch.zeros_like(count), torch.zeros_like(count)
    h = torch.zeros(model.depth, model.width, dtype=model.leaves.weight.dtype, device=nodes.device)
    c = torch.zeros_like(h)

    def push(own_h: Tensor, own_c: Tensor, at: Tensor) -> None:
        h.index_copy_(0, at[None], own_h)
        c.index_copy_(0, at[None], own_c)
        _store((k, top), (k + 1, at + 1))

    def leaf() -> None:
        push(*model.leaf(nodes.index_select(0, k[None]).clamp(min=0)), top)

    def join() -> None:
        below = torch.stack((top - 2, top - 1))
        push(*model.join(h.index_select(0, below), c.index_select(0, below)), top - 2)

    kinds = [node >= 0 for node in nodes[: int(count)].tolist()]
    top.fill_(model.depth // 2)  # there is room for the few steps that may run now
    run_leaf, run_join = faster(leaf), faster(join)

    def call() -> Tensor:
        k.zero_()
        top.zero_()
        for is_leaf in kinds:
            (run_leaf if is_leaf else run_join)()
        return h[0].clone()

    return call


def skipnet(model: SkipNet, args: Args, faster: Faster) -> Callable[[], Any]:
    """The host waits for every gate, and launches the block or not."""
    (image,) = args
    h, c = model.start(image)
    wanted = torch.zeros((), dtype=torch.bool, device=image.device)
    with torch.no_grad():
        shapes = [model.stem(image)]
        for first in model.firsts:
            shapes.append(first(shapes[-1]))
        answer = torch.empty_like(model.finish(shapes[-1]))
    xs = [torch.empty_like(x) for x in shapes]

    def gate(x: Tensor, module: Any) -> Step:
        def step() -> None:
            _store((wanted, h, c), module(x, h, c, model.cell))

        return faster(step)

    def block(x: Tensor, into: Tensor, module: Any) -> Step:
        return faster(lambda: _store((into,), (module(x),)))

    stages = [
        (block(x, y, first), [(gate(y, g), block(y, y, b)) for g, b in zip(gates, blocks, strict=True)])
        for x, y, first, gates, blocks in zip(xs[:-1], xs[1:], model.firsts, model.gates, model.rest, strict=True)
    ]  # fmt: skip
    begin, end = block(image, xs[0], model.stem), block(xs[-1], answer, model.finish)

    def call() -> Tensor:
        h.zero_()
        c.zero_()
        begin()
        for first, rest in stages:
            first()
            for ask, run in rest:
                ask()
                if wanted.item():
                    run()
        end()
        return answer.clone()

    return call
