"""torchvision's operators for detection, in plain PyTorch: registered where torchvision is not installed, with its names and signatures."""

import importlib.util
import math
from typing import Any

import torch

T = torch.Tensor
_FRAGMENTS = list[torch.library.Library]()  # registered as long as they live


def nms(dets: T, scores: T, iou_threshold: float) -> T:
    order = scores.sort(descending=True, stable=True).indices.tolist()
    area = (dets[:, 2:] - dets[:, :2]).prod(1)
    kept = list[int]()
    for k in order:
        low, high = torch.maximum(dets[kept, :2], dets[k, :2]), torch.minimum(dets[kept, 2:], dets[k, 2:])  # fmt: skip
        shared = (high - low).clamp(min=0).prod(1)
        share = shared / (area[kept] + area[k] - shared)
        if not (share.double() > iou_threshold).any():
            kept.append(k)
    return torch.tensor(kept, dtype=torch.int64)


def _sample(x: T, y: float, z: float, clamped: bool) -> T:
    """x [c, h, w] at a position."""
    h, w = x.shape[1:]
    if not (-1 <= y <= h and -1 <= z <= w):
        return x.new_zeros(len(x))
    if clamped:
        y, z = min(max(y, 0.0), h - 1), min(max(z, 0.0), w - 1)
    low, left = math.floor(y), math.floor(z)
    found = x.new_zeros(len(x))
    for i, a in ((low, 1 - (y - low)), (low + 1, y - low)):
        for j, b in ((left, 1 - (z - left)), (left + 1, z - left)):
            if 0 <= i < h and 0 <= j < w:
                found = found + a * b * x[:, i, j]
    return found


def roi_align(
    input: T, rois: T, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int, aligned: bool
) -> T:  # fmt: skip
    out = input.new_zeros(len(rois), input.shape[1], pooled_height, pooled_width)
    for k, roi in enumerate(rois):
        left, top, right, bottom = (v * spatial_scale - aligned * 0.5 for v in roi[1:].tolist())
        height, width = bottom - top, right - left
        if not aligned:
            height, width = max(height, 1.0), max(width, 1.0)
        h, w = height / pooled_height, width / pooled_width
        rows = sampling_ratio if sampling_ratio > 0 else math.ceil(h)
        columns = sampling_ratio if sampling_ratio > 0 else math.ceil(w)
        for i in range(pooled_height):
            for j in range(pooled_width):
                for r in range(rows):
                    for c in range(columns):
                        y, z = top + (i + (r + 0.5) / rows) * h, left + (j + (c + 0.5) / columns) * w  # fmt: skip
                        out[k, :, i, j] += _sample(input[int(roi[0])], y, z, True)
        out[k] /= max(rows * columns, 1)
    return out


def deform_conv2d(
    input: T, weight: T, offset: T, mask: T, bias: T, stride_h: int, stride_w: int, pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
    groups: int, offset_groups: int, use_mask: bool,
) -> T:  # fmt: skip
    n, channels = input.shape[:2]
    kh, kw = weight.shape[2:]
    oh, ow = offset.shape[2:]
    columns = input.new_zeros(n, channels, kh, kw, oh, ow)
    each = channels // offset_groups
    for m in range(n):
        for g in range(offset_groups):
            part = input[m, g * each : (g + 1) * each]
            for i in range(kh):
                for j in range(kw):
                    tap = (g * kh + i) * kw + j
                    for y in range(oh):
                        for z in range(ow):
                            down = y * stride_h - pad_h + i * dilation_h + float(offset[m, 2 * tap, y, z])  # fmt: skip
                            along = z * stride_w - pad_w + j * dilation_w + float(offset[m, 2 * tap + 1, y, z])  # fmt: skip
                            found = _sample(part, down, along, False)
                            if use_mask:
                                found = found * mask[m, tap, y, z]
                            columns[m, g * each : (g + 1) * each, i, j, y, z] = found
    rows = columns.reshape(n, groups, channels // groups * kh * kw, oh * ow)
    found = weight.reshape(groups, weight.shape[0] // groups, -1) @ rows
    return found.reshape(n, -1, oh, ow) + bias[:, None, None]


def _fake_nms(dets: T, *_: Any) -> T:
    return dets.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


def _fake_roi_align(input: T, rois: T, *sizes: Any) -> T:
    return input.new_empty(rois.shape[0], input.shape[1], *sizes[1:3])


def _fake_deform_conv2d(input: T, weight: T, offset: T, *_: Any) -> T:
    return input.new_empty(input.shape[0], weight.shape[0], *offset.shape[2:])


_OPERATORS = {
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor": (nms, _fake_nms),
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor": (
        roi_align, _fake_roi_align,
    ),
    "deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h,"
    " SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor": (
        deform_conv2d, _fake_deform_conv2d,
    ),
}  # fmt: skip


def register() -> Any:
    """The namespace of the operators."""
    if importlib.util.find_spec("torchvision") is not None:
        importlib.import_module("torchvision")
    elif not _FRAGMENTS:
        library = torch.library.Library("torchvision", "DEF")
        _FRAGMENTS.append(library)
        for schema, (real, fake) in _OPERATORS.items():
            library.define(schema)
            name = schema.partition("(")[0]
            library.impl(name, real, "CPU")
            torch.library.register_fake(f"torchvision::{name}", fake, lib=library)
    return torch.ops.torchvision
