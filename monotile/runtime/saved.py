"""A compiled model in one file: an uncompressed zip of the artifact and the parameters. No pickle.

artifact            the bytes of `artifact.encode`
parameters.json     [{"name", "dtype", "shape"}, ...], in the order of the entries below
parameters/0, ...   the elements, row-major, little-endian
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from monotile.codegen.source import Source
from monotile.config import Options
from monotile.errors import InputError
from monotile.ir.dtype import DType
from monotile.runtime.artifact import Artifact, decode, encode
from monotile.runtime.tensors import kernel_readable, torch_dtype
from monotile.targets.registry import backend_of

_STAMP = (1980, 1, 1, 0, 0, 0)  # equal models give equal files


class _Entry(msgspec.Struct, frozen=True):
    name: str
    dtype: DType
    shape: tuple[int, ...]


def save(path: str | Path, artifact: Artifact, parameters: Mapping[str, torch.Tensor]) -> None:
    """Writes the file. Raises InputError if the model's arguments or results cannot be stored."""
    content = encode(artifact)
    if content is None:
        raise InputError(
            "this model cannot be saved: its arguments or results contain values or containers that cannot"
            " be stored. Use only tensors, numbers, strings, tuples, lists and dicts"
        )
    names = artifact.parameters
    index = [
        _Entry(
            n, DType(str(parameters[n].dtype).removeprefix("torch.")), tuple(parameters[n].shape)
        )
        for n in names
    ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo("artifact", _STAMP), content)
        file.writestr(zipfile.ZipInfo("parameters.json", _STAMP), msgspec.json.encode(index))
        for k, name in enumerate(names):
            flat = kernel_readable(parameters[name].detach()).cpu().flatten().view(torch.uint8)
            with file.open(
                zipfile.ZipInfo(f"parameters/{k}", _STAMP), "w", force_zip64=True
            ) as entry:
                entry.write(flat.numpy().tobytes())


def load(path: str | Path) -> tuple[Artifact, dict[str, torch.Tensor]]:
    """Reads a file that `save` wrote; the parameters are in host memory.

    A CPU kernel that was built for another processor is rebuilt from its source.
    Raises InputError for a file that Monotile did not write, or of another version.
    """
    try:
        with zipfile.ZipFile(path) as file:
            artifact = decode(file.read("artifact"))
            index = msgspec.json.decode(file.read("parameters.json"), type=list[_Entry])
            parameters = {e.name: _read(file, k, e) for k, e in enumerate(index)}
    except (OSError, zipfile.BadZipFile, KeyError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a model that Monotile saved: {error}") from error
    if artifact is None:
        raise InputError(
            f"{path} was saved by another version of Monotile: compile and save it again"
        )
    backend = backend_of(artifact.target)
    if backend.outdated(artifact.binary):
        source = Source(artifact.source, artifact.entry, artifact.checks)
        binary = backend.build(source, artifact.target, Options())
        artifact = msgspec.structs.replace(artifact, binary=binary)
    return artifact, parameters


def _read(file: zipfile.ZipFile, k: int, entry: _Entry) -> torch.Tensor:
    content = bytearray(file.read(f"parameters/{k}"))
    if not content:
        return torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
    return torch.frombuffer(content, dtype=torch_dtype(entry.dtype)).reshape(entry.shape)
