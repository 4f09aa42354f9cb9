"""OpenVINO as a rival, on the CPU: the exported network at the sizes of its call, with the hint for latency."""

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram

from monotile.compare.clock import Run
from monotile.compare.jobs import Network
from monotile.compare.tensors import (
    OfTensors,
    converting,
    exported,
    inputs_of,
    narrowest,
    results_of,
)
from monotile.runtime.reference import Call

# A narrow type by the name of the capability that the processor needs for it, and of its hint.
_NARROW = {torch.float16: ("FP16", "f16"), torch.bfloat16: ("BF16", "bf16")}


def run(_: Network, model: torch.nn.Module, call: Call, device: torch.device) -> Run:
    """One request, which reads the arguments where they lie and writes its results to the same memory each time. As many threads as PyTorch has.

    Raises Absent for a network that OpenVINO cannot convert, or that changes its buffers.
    """
    ov: Any = importlib.import_module("openvino")
    inputs = inputs_of(call)
    with converting():
        network = OfTensors(model, call)
        program = exported(network, inputs)
        results = results_of(program, device)
        made = _converted(ov, network, program, inputs)
        made.reshape({k: ov.PartialShape(list(x.shape)) for k, x in enumerate(inputs)})
        core = ov.Core()
        hints = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "INFERENCE_PRECISION_HINT": _precision(model, core),
        }
        request = core.compile_model(made, "CPU", hints).create_infer_request()
        for k, x in enumerate(inputs):
            request.set_input_tensor(k, _view(ov, x))
        for k, x in enumerate(results):
            request.set_output_tensor(k, _view(ov, x))

    return partial(_call, request, inputs, results)


def _converted(
    ov: Any, network: OfTensors, program: ExportedProgram, inputs: tuple[torch.Tensor, ...]
) -> Any:
    """From the exported program, else from a trace; with recurrent layers the other way round: of a trace each is one operator, where exported ones
    are unrolled."""
    exported_one = partial(ov.convert_model, program)
    traced = partial(ov.convert_model, network, example_input=inputs)
    recurrent = any(isinstance(m, torch.nn.RNNBase) for m in network.modules())
    first, second = (traced, exported_one) if recurrent else (exported_one, traced)
    try:
        return first()
    except Exception as problem:
        try:
            return second()
        except Exception:  # the first way is the better one
            raise problem from None


def _call(
    request: Any, _inputs: Sequence[torch.Tensor], results: list[torch.Tensor]
) -> list[torch.Tensor]:
    """_inputs: live as long as the request, which has their addresses."""
    request.infer(share_outputs=True)
    return results


def _precision(model: torch.nn.Module, core: Any) -> str:
    """float32, where the processor has no arithmetic in the network's type: OpenVINO would take another narrow one."""
    capability, hint = _NARROW.get(narrowest(model), ("FP32", "f32"))
    return hint if capability in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def _view(ov: Any, x: torch.Tensor) -> Any:
    """The tensor's memory as OpenVINO's; NumPy has no bfloat16."""
    if x.dtype == torch.bfloat16:
        return ov.Tensor(x.view(torch.int16).numpy(), list(x.shape), ov.Type.bf16)
    return ov.Tensor(x.numpy(), shared_memory=True)
