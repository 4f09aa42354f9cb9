"""Packed sequences: `pack_padded_sequence`, recurrent layers of its results, and `pad_packed_sequence`, while a model is exported.

PyTorch's own operators read the lengths on the host, which a tracer cannot. Within `traced_packed_sequences` they are replaced by operators with
data-dependent shapes: `data` has sum(lengths) rows, as in eager PyTorch, and `batch_sizes` max(lengths) elements. So whatever a model does with them is
as in eager PyTorch. Each `data` remembers the padded tensor [steps, batch, ...] that it was packed from. Recurrent layers and padding read that tensor,
so rows that nothing reads are never packed.

    monotile::packed_lengths(lengths, steps)  `lengths`; a call checks, as eager PyTorch does, that they descend and are 1 to `steps`
    monotile::packed_rnn(x, hx, params, ..., lengths, mode)  a recurrent layer of padded x [steps, batch, features]: sequence n takes its first
        lengths[n] steps. Gives [output, *final states]; the output after the end of a sequence is any finite value
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import nn
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.utils import rnn
from torch.nn.utils.rnn import PackedSequence
from torch.utils.weak import WeakTensorKeyDictionary

_LIBRARY = torch.library.Library("monotile", "FRAGMENT")
_LIBRARY.define("packed_lengths(Tensor lengths, SymInt steps) -> Tensor")
_LIBRARY.define(
    "packed_rnn(Tensor x, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional,"
    " Tensor lengths, str mode) -> Tensor[]"
)
_VF: Any = torch._VF  # pyright: ignore[reportPrivateUsage]
_EAGER = {"LSTM": _VF.lstm, "GRU": _VF.gru, "RNN_TANH": _VF.rnn_tanh, "RNN_RELU": _VF.rnn_relu}


def _checked(lengths: torch.Tensor, steps: int) -> torch.Tensor:
    """Runs the operator."""
    fits = (lengths > 0) & (lengths <= steps)
    if not bool(fits.all()) or bool((lengths.diff() > 0).any()):
        raise RuntimeError(
            f"lengths of packed sequences descend, from {steps} at most to 1 at least: {lengths.tolist()}"
        )
    return lengths.clone()


def _run(
    x: torch.Tensor, hx: Sequence[torch.Tensor], params: Sequence[torch.Tensor], *rest: Any
) -> list[torch.Tensor]:
    """Runs the operator; the lengths descend."""
    *options, lengths, mode = rest
    data, sizes = _VF._pack_padded_sequence(x, lengths.cpu(), False)
    states = list(hx) if mode == "LSTM" else hx[0]
    out, *finals = _EAGER[mode](data, sizes, states, list(params), *options)
    return [_VF._pad_packed_sequence(out, sizes, False, 0.0, x.shape[0])[0], *finals]


def _shaped(
    x: torch.Tensor, hx: Sequence[torch.Tensor], _params: Any, *rest: Any
) -> list[torch.Tensor]:
    bidirectional = rest[4]
    width = hx[0].shape[2] * (2 if bidirectional else 1)
    return [x.new_empty((x.shape[0], x.shape[1], width)), *map(torch.empty_like, hx)]


_LIBRARY.impl("packed_lengths", _checked, "CompositeExplicitAutograd")
_LIBRARY.impl("packed_rnn", _run, "CompositeExplicitAutograd")
torch.library.register_fake(
    "monotile::packed_lengths", lambda x, steps: torch.empty_like(x), lib=_LIBRARY
)
torch.library.register_fake("monotile::packed_rnn", _shaped, lib=_LIBRARY)
_lengths_op: Any = torch.ops.monotile.packed_lengths.default
_rnn_op: Any = torch.ops.monotile.packed_rnn.default


class _Layout(NamedTuple):
    """The layout that `batch_sizes` describe. lengths: int64 [batch], descending. live: bool [steps, batch], which steps sequences have."""

    lengths: torch.Tensor
    live: torch.Tensor

    def packed(self, padded: torch.Tensor) -> torch.Tensor:
        """[sum of lengths, ...]: the existing rows, by step."""
        return padded[self.live.to(padded.device)]

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """[steps, batch, ...] of the rows; elements that are not live are arbitrary rows."""
        counts = self.live.sum(1)
        before = counts.cumsum(0) - counts
        at = before[:, None] + torch.arange(self.live.shape[1])
        return rows[torch.where(self.live, at, 0).to(rows.device)]


class _Padded(NamedTuple):
    """The padded tensor that rows were packed from, as long as neither was changed in place."""

    tensor: torch.Tensor
    versions: tuple[int, int]


class _Traced:
    """The operators of packed sequences in one export; those of `torch.nn.utils.rnn` have PyTorch's names."""

    def __init__(self) -> None:
        self._layouts: Any = WeakTensorKeyDictionary()  # of batch_sizes
        self._padded: Any = WeakTensorKeyDictionary()  # of data

    def pack(
        self, given: torch.Tensor, lengths: torch.Tensor, batch_first: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = given.transpose(0, 1) if batch_first else given
        steps, batch = x.shape[:2]
        if lengths.dim() != 1:
            raise RuntimeError(
                f"'lengths' argument should be a 1D CPU int64 tensor, but got {lengths.dim()}D"
            )
        if lengths.shape[0] != batch:
            raise RuntimeError(
                f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.shape[0]} (batch_size={batch})"
            )
        lengths = _lengths_op(lengths.cpu(), steps)  # a kernel's arguments are all on one device
        live = lengths > torch.arange(steps)[:, None]
        counts = live.sum(1)
        sizes = counts[counts > 0]
        torch._check(sizes.shape[0] <= steps)  # pyright: ignore[reportPrivateUsage]
        layout = self._layouts[sizes] = _Layout(lengths, live)
        return self._rows(x, layout), sizes

    def pad(
        self, data: torch.Tensor, sizes: torch.Tensor, batch_first: bool, value: float, total: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layout, x = self._layout(sizes), self._steps(data, sizes)
        live, fill = layout.live.to(x.device), x.new_full((), value)
        x = torch.where(live.reshape(*live.shape, *[1] * (x.dim() - 2)), x, fill)
        steps = x.shape[0]
        if statically_known_true(total > steps):
            x = torch.cat([x, fill.expand(total - steps, *x.shape[1:])])
        elif not statically_known_true(total == steps):
            x = x.narrow(0, 0, total)
        return x.transpose(0, 1) if batch_first else x, layout.lengths.clone()

    def layer(self, module: nn.RNNBase, given: PackedSequence, hx: Any) -> tuple[Any, Any]:
        """The result of `module`, an nn.LSTM, nn.GRU or nn.RNN, for `given` and initial states."""
        data, sizes, order, back = given
        x, layout = self._steps(data, sizes), self._layout(sizes)
        module.check_input(x, None)
        is_lstm, shapes = module.mode == "LSTM", _shapes(module, x.shape[1])
        states = list(map(x.new_zeros, shapes)) if hx is None else list(hx) if is_lstm else [hx]
        for state, shape in zip(states, shapes, strict=True):
            module.check_hidden_size(state, shape)
        if order is not None:
            states = [h.index_select(1, order) for h in states]
        options = (module.bias, module.num_layers, float(module.dropout), module.training, module.bidirectional)  # fmt: skip
        out, *finals = _rnn_op(x, states, _weights(module), *options, layout.lengths, module.mode)
        if back is not None:
            finals = [h.index_select(1, back) for h in finals]
        packed = PackedSequence(self._rows(out, layout), sizes, order, back)
        return packed, tuple(finals) if is_lstm else finals[0]

    def _rows(self, padded: torch.Tensor, layout: _Layout) -> torch.Tensor:
        data = layout.packed(padded)
        self._padded[data] = _Padded(padded, (data._version, padded._version))
        return data

    def _steps(self, data: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        known: _Padded | None = self._padded.get(data)
        if known is not None and known.versions == (data._version, known.tensor._version):
            return known.tensor
        return self._layout(sizes).padded(data)

    def _layout(self, sizes: torch.Tensor) -> _Layout:
        known: _Layout | None = self._layouts.get(sizes)
        if known is None:
            raise RuntimeError(
                "a packed sequence that pack_padded_sequence has not made within the model: its batch_sizes say how the model is"
                " traced. Pass the padded tensor and its lengths, and pack them in the model"
            )
        return known


def _weights(module: nn.RNNBase) -> list[torch.Tensor]:
    names: Any = module._flat_weights_names  # pyright: ignore[reportPrivateUsage]
    return [getattr(module, name) for name in names]


def _shapes(module: nn.RNNBase, batch: int) -> list[tuple[int, int, int]]:
    """The shapes of the states, the hidden one first."""
    count, hidden = (
        module.num_layers * (1 + module.bidirectional),
        module.proj_size or module.hidden_size,
    )
    widths = [hidden, module.hidden_size] if module.mode == "LSTM" else [hidden]
    return [(count, batch, width) for width in widths]


@contextmanager
def traced_packed_sequences() -> Generator[None, None, None]:
    """Within, packed sequences and recurrent layers of them can be traced."""
    traced = _Traced()
    functions = {**vars(_VF), "_pack_padded_sequence": traced.pack, "_pad_packed_sequence": traced.pad}  # fmt: skip

    def forward_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(module: Any, input: Any, hx: Any = None) -> Any:
            if isinstance(input, PackedSequence):
                return traced.layer(module, input, hx)
            return original(module, input, hx)

        return forward

    with ExitStack() as stack:
        stack.enter_context(patch.object(rnn, "_VF", SimpleNamespace(**functions)))
        for kind in (nn.LSTM, nn.GRU, nn.RNN):
            stack.enter_context(patch.object(kind, "forward", forward_of(kind.forward)))
        yield
