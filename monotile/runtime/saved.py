"""A compiled model in one file: an uncompressed zip of the artifact and the parameters. No pickle.

artifact            what `artifact.encode` gives
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
from monotile.runtime.tensors import plain, torch_dtype
from monotile.targets.registry import backend_of

_STAMP = (1980, 1, 1, 0, 0, 0)  # equal models make equal files


class _Entry(msgspec.Struct, frozen=True):
    name: str
    dtype: DType
    shape: tuple[int, ...]


def save(path: str | Path, artifact: Artifact, parameters: Mapping[str, torch.Tensor]) -> None:
    """Writes the file. Raises InputError where the model's arguments or results have no stored form."""
    content = encode(artifact)
    if content is None:
        raise InputError(
            "this model cannot be saved: its arguments or results hold values or containers that have no"
            " stored form. Give it and have it return tensors, numbers, strings, tuples, lists and dicts"
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
            flat = plain(parameters[name].detach()).cpu().flatten().view(torch.uint8)
            with file.open(
                zipfile.ZipInfo(f"parameters/{k}", _STAMP), "w", force_zip64=True
            ) as entry:
                entry.write(flat.numpy().tobytes())


def load(path: str | Path) -> tuple[Artifact, dict[str, torch.Tensor]]:
    """Reads what `save` wrote; the parameters lie in host memory.

    A kernel that was built for another processor than this machine's is built again from its source.
    Raises InputError for a file that is none of Monotile's, or of another version of it.
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
