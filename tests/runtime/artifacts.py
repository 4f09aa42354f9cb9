"""Small artifacts written by hand, so that the runtime is tested without frontend, scheduler and emitters."""

import numpy as np
import torch.utils._pytree as pytree

from monotile.analysis.work import Work
from monotile.config import Options
from monotile.ir.dtype import DType
from monotile.ir.expr import Tensor
from monotile.ir.signature import OutputLeaf, Signature, TensorLeaf
from monotile.plan.launch import Launch
from monotile.plan.nodes import Plan
from monotile.plan.places import Pointer
from monotile.runtime.artifact import Artifact
from monotile.targets.binary import Binary
from monotile.targets.cpu import build as build_cpu
from monotile.targets.cpu.target import cpu_target
from monotile.targets.cuda.target import cuda_target

N = 8

# y = x * w + c, and an error where x[0] is 99
SOURCE = f"""
int monotile_run(void* const* pointers, char* workspace) {{
    const float* x = pointers[0];
    float* y = pointers[1];
    const float* w = pointers[2];
    const float* c = pointers[3];
    float* scratch = (float*)workspace;
    if (((unsigned long)workspace & 255) != 0) return 1;
    if (x[0] == 99) return 2;
    for (int i = 0; i < {N}; i++) scratch[i] = x[i] * w[i];
    for (int i = 0; i < {N}; i++) y[i] = scratch[i] + c[0];
    return 0;
}}
"""


def signature(args: object, kwargs: dict[str, object] | None = None) -> Signature:
    """Of a call with one tensor "x" of N floats and a tree that holds it once."""
    _, tree = pytree.tree_flatten((args, kwargs or {}))
    _, out = pytree.tree_flatten({"y": 0})
    x = TensorLeaf(Tensor("x", (N,), DType.F32))
    return Signature((x,), ("args[0]",), tree, (OutputLeaf(0),), out)


def cpu_artifact(sig: Signature | None = None, source: str = SOURCE) -> Artifact:
    y = Tensor("y", (N,), DType.F32)
    return Artifact(
        target=cpu_target(workers=1),
        plan=plan("cpu"),
        outputs=(y,),
        source=source,
        entry="monotile_run",
        checks=("misaligned", "index out of range for table of extent 4"),
        binary=build_cpu.build(source, cpu_target(workers=1), Options(cache=False)),
        signature=sig or signature((0,)),
        constants={"c": np.array(0.5, dtype=np.float32)},
        work=Work(12, {"fma": 4}),
    )


def cuda_artifact() -> Artifact:
    y = Tensor("y", (N,), DType.F32)
    return Artifact(
        target=cuda_target("sm_90a"),
        plan=plan("cuda:sm_90a"),
        outputs=(y,),
        source="",
        entry="monotile_kernel",
        checks=(),
        binary=Binary("cuda", b"cubin", "ptx", "NVRTC 13.0", (13, 0)),
        signature=signature((0,)),
        constants={"c": np.array(0.5, dtype=np.float32)},
        work=Work(12, {"fma": 4}),
    )


def plan(target: str) -> Plan:
    return Plan(
        target=target,
        launch=Launch(workers=1, threads=1, shared_bytes=0, workspace_bytes=256),
        inputs=("x",),
        outputs=("y",),
        weights=("w", "c"),
        places={"x": (Pointer(0),), "y": (Pointer(1),)},
        body=(),
    )
