"""ONNX Runtime as a rival: the network in ONNX, with all optimisations, on the CPU or by its CUDA provider."""

import importlib
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from monotile.compare.clock import Run
from monotile.compare.jobs import Absent, Network
from monotile.compare.tensors import OfTensors, converting, exported, inputs_of, results_of
from monotile.runtime.reference import Call

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_TYPES = {  # of onnx.TensorProto
    torch.float32: 1, torch.uint8: 2, torch.int8: 3, torch.int16: 5, torch.int32: 6, torch.int64: 7, torch.bool: 9, torch.float16: 10,
    torch.float64: 11, torch.bfloat16: 16,
}  # fmt: skip


def run(_: Network, model: torch.nn.Module, call: Call, device: torch.device) -> Run:
    """Reads the arguments where they lie and writes its results to the same memory each time. As many threads as PyTorch has.

    Raises Absent for a network that cannot be converted or changes its buffers, and without a provider for the device.
    """
    runtime: Any = importlib.import_module("onnxruntime")
    provider = _PROVIDERS[device.type]
    if provider not in runtime.get_available_providers():
        raise Absent(f"the installed ONNX Runtime has no {provider}")
    inputs = inputs_of(call)
    with converting():
        program = exported(OfTensors(model, call), inputs)
        results = results_of(program, device)
        session = _session(runtime, program, provider)
        binding = session.io_binding()
        for place, x in zip(session.get_inputs(), inputs, strict=True):
            binding.bind_input(place.name, *_memory(x))
        for place, x in zip(session.get_outputs(), results, strict=True):
            binding.bind_output(place.name, *_memory(x))

    return partial(_call, session, binding, inputs, results)


def _call(
    session: Any, binding: Any, _inputs: Sequence[torch.Tensor], results: list[torch.Tensor]
) -> list[torch.Tensor]:
    """_inputs: live as long as the binding, which has their addresses."""
    session.run_with_iobinding(binding)
    return results


def _session(runtime: Any, program: ExportedProgram, provider: str) -> Any:
    """By a file: weights over 2 GB are in no other form."""
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="monotile-onnx-") as folder:
        path = Path(folder) / "network.onnx"
        made: Any = torch.onnx.export(program, dynamo=True, verbose=False)
        made.save(path, external_data=True)
        return runtime.InferenceSession(path, options, providers=[provider])


def _memory(x: torch.Tensor) -> tuple[str, int, int, list[int], int]:
    """Device, its number, type, shape and address."""
    return x.device.type, x.device.index or 0, _TYPES[x.dtype], list(x.shape), x.data_ptr()
