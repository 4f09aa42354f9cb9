"""Operators in training mode, which an inference compiler refuses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from monotile.errors import CaptureError
from monotile.frontends.torch.origin import origin


def _argument(args: Sequence[Any], k: int) -> Any:
    return args[k] if k < len(args) else None


def _dropout(args: Sequence[Any]) -> bool:
    return bool(_argument(args, 2)) and bool(_argument(args, 1))


# aten name -> whether it is training, from the positional arguments
_ACTIVE: Mapping[str, Callable[[Sequence[Any]], bool]] = {
    "aten.dropout": _dropout,
    "aten.dropout_": _dropout,
    "aten.feature_dropout": _dropout,
    "aten.alpha_dropout": _dropout,
    "aten.feature_alpha_dropout": _dropout,
    "aten.native_dropout": _dropout,
    # Without running statistics, inference uses the batch's own too.
    "aten.batch_norm": lambda a: bool(_argument(a, 5)) and _argument(a, 3) is not None,
    "aten.instance_norm": lambda a: bool(_argument(a, 5)) and _argument(a, 3) is not None,
    "aten.scaled_dot_product_attention": lambda a: bool(_argument(a, 4)),
    "aten.rrelu": lambda a: bool(_argument(a, 3)),
    "aten.lstm": lambda a: bool(_argument(a, 5)) and bool(_argument(a, 6)),
    "aten.gru": lambda a: bool(_argument(a, 5)) and bool(_argument(a, 6)),
    "monotile.packed_rnn": lambda a: bool(_argument(a, 5)) and bool(_argument(a, 6)),
}


def is_training(node: fx.Node) -> bool:
    """Whether the operator is an active dropout or normalises with the statistics of the batch."""
    active = _ACTIVE.get(str(node.target).rpartition(".")[0])
    return active is not None and active(node.args)


def is_idle(node: fx.Node) -> bool:
    """Whether the operator is one of these and behaves as in inference."""
    return str(node.target).rpartition(".")[0] in _ACTIVE and not is_training(node)


def refuse_training(graph_module: fx.GraphModule) -> None:
    """Raises CaptureError if a dropout is active or a batch normalisation uses the batch's statistics."""
    for module in graph_module.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if is_training(node):
                where = origin(node.stack_trace)
                raise CaptureError(
                    f"{node.target} is in training mode"
                    + (f", at {where}" if where else "")
                    + ". Monotile compiles inference: call model.eval() first"
                )
