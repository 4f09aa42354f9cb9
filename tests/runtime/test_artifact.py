"""Artifacts as bytes and back."""

import collections
import dataclasses

import ml_dtypes
import msgspec
import numpy as np
import pytest
import torch.utils._pytree as pytree

from monotile.ir.signature import Signature, ValueLeaf
from monotile.runtime.artifact import Artifact, decode, encode
from tests.runtime.artifacts import cuda_artifact

Unregistered = collections.namedtuple("Unregistered", "x")


def with_signature(sig: Signature) -> Artifact:
    return msgspec.structs.replace(cuda_artifact(), signature=sig)


def test_there_and_back() -> None:
    arrays = {
        "c": np.array(1.5, dtype=ml_dtypes.bfloat16),
        "d": np.zeros((0, 3), dtype=np.int64),
        "e": np.array([True, False]),
    }
    before = msgspec.structs.replace(cuda_artifact(), constants=arrays)
    content = encode(before)
    assert content is not None
    after = decode(content)
    assert after is not None
    assert msgspec.structs.replace(after, constants={}) == msgspec.structs.replace(
        before, constants={}
    )
    for name, array in arrays.items():
        assert after.constants[name].dtype == array.dtype
        np.testing.assert_array_equal(after.constants[name], array)


@pytest.mark.parametrize("value", [None, True, 1, 1.0, float("inf"), "text", -(2**63)])
def test_values_keep_their_type(value: object) -> None:
    sig = dataclasses.replace(cuda_artifact().signature, outputs=(ValueLeaf(value),))
    content = encode(with_signature(sig))
    assert content is not None
    after = decode(content)
    assert after is not None
    (leaf,) = after.signature.outputs
    assert isinstance(leaf, ValueLeaf)
    assert type(leaf.value) is type(value)
    assert leaf.value == value


@pytest.mark.parametrize("value", [2**63, 1j, object(), np.float32(1)])
def test_values_without_a_faithful_text_are_not_stored(value: object) -> None:
    sig = dataclasses.replace(cuda_artifact().signature, outputs=(ValueLeaf(value),))
    assert encode(with_signature(sig)) is None


def test_containers_without_a_name_are_not_stored() -> None:
    _, tree = pytree.tree_flatten(Unregistered(0))
    sig = dataclasses.replace(cuda_artifact().signature, output_tree=tree)
    assert encode(with_signature(sig)) is None


@pytest.mark.parametrize("content", [b"", b"junk", msgspec.msgpack.encode({"target": 1})])
def test_junk_is_no_artifact(content: bytes) -> None:
    assert decode(content) is None
