"""Configuration structs of the device headers, as text. Fields with default values are omitted."""

from collections.abc import Mapping

# As the headers have them. A field without an entry has no default.
SIDE: Mapping[str, object] = {
    "k_major": True, "copy": "mt::Copy::ASYNC", "vector": 1, "check_rows": False, "prefetched_chunks": 0, "task_rows": 0,
    "evict_first": False, "rounded": False, "sparse": False,
}  # fmt: skip
PRODUCT: Mapping[str, object] = {
    "kernel": "mt::Kernel::MMA", "warps_m": 1, "warps_n": 1, "slices": 1, "vector": 1, "teams": 1, "groups": 1, "group_k": 1,
    "passes": 1, "next_task_chunks": 0, "products": 1,
}  # fmt: skip
ATTENTION: Mapping[str, object] = {
    "kernel": "mt::Kernel::MMA",
    "vector": 1,
    "passes": 1,
    "bounded": False,
    "part": False,
}


def config(name: str, defaults: Mapping[str, object], **fields: object) -> str:
    """Text of the struct `mt::name`, whose fields stand in the header's order."""
    written = [
        f".{field} = {_spelled(value)}"
        for field, value in fields.items()
        if field not in defaults or value != defaults[field]
    ]
    return f"mt::{name}{{{', '.join(written)}}}"


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
