"""How functions of a kernel are defined in CUDA C++: inlined, called, or compiled separately."""

from collections.abc import Mapping
from dataclasses import replace

from monotile.codegen.functions import Function

# Registers that a separately compiled function preserves. By default it saves some fifty, in which a kernel that only calls one
# stage after the other has next to nothing. For fewer than 2 ptxas warns: the return address is there.
PRESERVED = 4


def head(f: Function, *, called: bool = True, apart: bool = False) -> str:
    """The head of `f`. apart: of a separately compiled one."""
    kept = f"#pragma nv_abi preserve_n_data({PRESERVED})\n" if apart else "static "
    inline = "__noinline__" if called else "__forceinline__"
    return f"{kept}__device__ {inline} void {f.name}({', '.join(f.declarations)})"


def definition(f: Function, given: Mapping[str, str], *, called: bool, apart: bool = False) -> str:
    """`f`; for a called function, `f` itself under another name, with arguments that ptxas keeps in each lane (`in_lanes`)."""
    text = _with_failures(f.text)
    if not called:
        return f"{head(f, called=False)} {text}"
    bases = [name for name, kind in f.parameters.items() if "*" in kind and name not in given]
    known = "".join(f"  mt::ptx::assume_global({name});\n" for name in bases)
    body = text.replace("{\n", "{\n" + known, 1)
    if apart:
        return f"{head(f, apart=True)} {body}"
    callee = replace(f, name=f"{f.name}_called")
    arguments = ", ".join(
        name if kind.endswith("&") else f"mt::ptx::in_lanes({name})"
        for name, kind in f.parameters.items()
    )
    caller = f"{head(f, called=False)} {{\n  {callee.name}({arguments});\n}}\n"
    return f"{head(callee)} {body}{caller}"


def _with_failures(body: str) -> str:
    """`body` with what its index checks need: the number of one that failed. It is looked at only at the end, since a branch at each check
    would keep the loads behind it from being issued with those before it."""
    if "MT_CHECK" not in body:
        return body
    begin, end = body.split("{\n", 1), "  if (mt_failed) mt::fail(mt_failed - 1);\n}"
    last = begin[1].rindex("}")
    return f"{begin[0]}{{\n  unsigned mt_failed = 0;\n{begin[1][:last]}{end}{begin[1][last + 1 :]}"
