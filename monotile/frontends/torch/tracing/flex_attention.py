"""`torch.nn.attention.flex_attention` in a trace: its operators, with those of the model's `score_mod` and `mask_mod`."""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo import _trace_wrapped_higher_order_op as indexing
from torch._higher_order_ops.flex_attention import FlexAttentionHOP
from torch.nn.attention import flex_attention

from monotile.frontends.torch.tracing.overrides import FunctionOverrides

T = torch.Tensor


@contextmanager
def flex_attention_is_traced() -> Generator[None]:
    """Within, a call of flex attention is traced as all scores, and a mask of those that count. The functions of the model are called as they
    are: Dynamo, through which PyTorch calls them, makes numbers of sizes."""

    def dense(_: FlexAttentionHOP, *args: Any, **named: Any) -> tuple[T, T, T]:
        return _dense(*args, **named)

    def anywhere(*_: T) -> None:
        """On the CPU it refuses parameters that ask for gradients, which nobody computes here."""

    with (
        patch.object(FlexAttentionHOP, "__call__", dense),
        patch.object(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True, create=True),
        patch.object(flex_attention, "_validate_device", anywhere, create=True),
        patch.object(indexing, "TransformGetItemToIndex", _indexing),
        # It takes the modes of the tracer away, which Dynamo would bring back.
        patch.object(
            flex_attention, "setup_compilation_env", partial(nullcontext, "eager"), create=True
        ),
    ):
        yield


def _dense(
    query: T,
    key: T,
    value: T,
    score_mod: Callable[..., T],
    block_mask: tuple[Any, ...],
    scale: float,
    *rest: Any,
) -> tuple[T, T, T]:
    """The result in the memory order of `query`, as PyTorch has it, and the logarithms to base 2 of each row's sum and of its largest term.

    query: [B, H, M, K]. key, value: [1 or B, H / G, N, K]. score_mod: of a score, its batch, head, row and column, and the first of the
    buffers. block_mask: the last is a function of the same, without the score and with the second buffers. rest: options of kernels, buffers.
    """
    of_scores, of_mask = (*rest[1:], (), ())[:2]
    batch, heads = query.shape[:2]
    key, value = (x.repeat_interleave(heads // x.shape[1], 1).expand(batch, -1, -1, -1) for x in (key, value))  # fmt: skip
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(wide) @ key.to(wide).mT * scale
    at = [torch.arange(n, device=query.device) for n in scores.shape]
    with _indexing():
        scores = _everywhere(score_mod, (0,), of_scores)(scores, *at, *of_scores)
        inside = _everywhere(block_mask[-1], (), of_mask)(*at, *of_mask)
    scores = scores.to(wide).masked_fill(~inside, -math.inf)
    out = torch.ops.aten._safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
    order = sorted(range(3), key=lambda d: -query.stride(d))
    out = out.permute(*order, 3).contiguous().permute(*map(order.index, range(3)), 3)
    return out, scores.logsumexp(-1) / math.log(2), scores.amax(-1) / math.log(2)


def _everywhere(
    function: Callable[..., T], first: tuple[int, ...], buffers: tuple[Any, ...]
) -> Callable[..., T]:
    """`function` of numbers, for all batches, heads, rows and columns. first: the dimension of the arguments before these."""
    for d in reversed(range(4)):
        places = tuple(0 if k == d else None for k in range(4))
        function = torch.vmap(function, in_dims=(*first, *places, *(None for _ in buffers)))
    return function


def _indexing() -> FunctionOverrides:
    """Within, `x[i]` takes tensors `i` as they are. PyTorch's own is an operator that asks for gradients."""
    return FunctionOverrides({"__getitem__": _indexed})


def _indexed(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """`x[i]` of a tensor `i`, of which Python would make a number."""
    x, index = args
    items: tuple[Any, ...] = index if isinstance(index, tuple) else (index,)
    tensors = [i for i in items if isinstance(i, T)]
    if not tensors or not all(isinstance(i, T | int) for i in items):
        return function(x, index, **named)
    given = [i if isinstance(i, T) else torch.full_like(tensors[0], i) for i in items]
    return torch.ops.aten.index(x, given)
