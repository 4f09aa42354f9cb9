"""A compiled model in one file: an uncompressed zip of the artifact and the parameters, without pickle."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

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


def save(
    path: str | Path | IO[bytes],
    artifact: Artifact,
    parameters: Mapping[str, torch.Tensor],
    smaller: Sequence[Artifact] = (),
) -> None:
    """Writes the file. smaller: the kernels for smaller sizes. Raises InputError if the model's arguments or results cannot be stored."""
    artifacts = {f"smaller/{k}": a for k, a in enumerate(smaller)} | {"artifact": artifact}
    contents = {entry: found for entry, a in artifacts.items() if (found := encode(a)) is not None}
    if len(contents) < len(artifacts):
        raise InputError(
            "this model cannot be saved: its arguments or results contain values or containers that cannot"
            " be stored. Use only tensors, numbers, strings, tuples, lists and dicts"
        )
    names = tuple(dict.fromkeys(n for a in (artifact, *smaller) for n in a.named))
    index = [
        _Entry(
            n, DType(str(parameters[n].dtype).removeprefix("torch.")), tuple(parameters[n].shape)
        )
        for n in names
    ]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for entry, content in contents.items():
            file.writestr(zipfile.ZipInfo(entry, _STAMP), content)
        file.writestr(zipfile.ZipInfo("parameters.json", _STAMP), msgspec.json.encode(index))
        for k, name in enumerate(names):
            flat = kernel_readable(parameters[name].detach()).cpu().flatten().view(torch.uint8)
            with file.open(
                zipfile.ZipInfo(f"parameters/{k}", _STAMP), "w", force_zip64=True
            ) as entry:
                entry.write(flat.numpy().tobytes())


def load(path: str | Path | IO[bytes]) -> tuple[list[Artifact], dict[str, torch.Tensor]]:
    """Reads a file that `save` wrote: the artifacts for smaller sizes, ascending, and the main one; the parameters are in host memory.

    A CPU kernel that was built for another processor is rebuilt from its source. Raises InputError for a file that Monotile did not write,
    or of another version.
    """
    try:
        with zipfile.ZipFile(path) as file:
            smaller = sorted(
                (n for n in file.namelist() if n.startswith("smaller/")),
                key=lambda n: int(n.partition("/")[2]),
            )
            artifacts = [decode(file.read(n)) for n in (*smaller, "artifact")]
            index = msgspec.json.decode(file.read("parameters.json"), type=list[_Entry])
            parameters = {e.name: _read(file, k, e) for k, e in enumerate(index)}
    except (OSError, zipfile.BadZipFile, KeyError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a model that Monotile saved: {error}") from error
    known = [_built(a) for a in artifacts if a is not None]
    if len(known) < len(artifacts):
        raise InputError(
            f"{path} was saved by another version of Monotile: compile and save it again"
        )
    return known, parameters


def _built(artifact: Artifact) -> Artifact:
    """The artifact with a binary for this machine."""
    backend = backend_of(artifact.target)
    if not backend.outdated(artifact.binary):
        return artifact
    source = Source(artifact.source, artifact.entry, artifact.checks)
    binary = backend.build(source, artifact.target, Options())
    return msgspec.structs.replace(artifact, binary=binary)


def _read(file: zipfile.ZipFile, k: int, entry: _Entry) -> torch.Tensor:
    content = bytearray(file.read(f"parameters/{k}"))
    if not content:
        return torch.empty(entry.shape, dtype=torch_dtype(entry.dtype))
    return torch.frombuffer(content, dtype=torch_dtype(entry.dtype)).reshape(entry.shape)
