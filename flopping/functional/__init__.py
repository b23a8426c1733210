"""Pure equivariant operations on features. The layers of `flopping.nn` hold parameters and call these."""

from flopping.functional.attention import attention, attention_weights, heads, read_rows
from flopping.functional.basis import (
    Pointwise,
    add,
    cat,
    from_regular,
    gated,
    invariant_only,
    pointwise,
    residual,
    split,
    to_regular,
)
from flopping.functional.invariants import lengths, polynomials, slots
from flopping.functional.norm import layer_norm
from flopping.functional.operation import compile_operations
from flopping.functional.product import is_for_onednn, linear, onednn_linear, tune_cpu, use_onednn
from flopping.functional.rotary import rotary_planes, rotary_tables, rotate

__all__ = [
    "Pointwise",
    "add",
    "attention",
    "attention_weights",
    "cat",
    "compile_operations",
    "from_regular",
    "gated",
    "heads",
    "invariant_only",
    "is_for_onednn",
    "layer_norm",
    "lengths",
    "linear",
    "onednn_linear",
    "pointwise",
    "polynomials",
    "read_rows",
    "residual",
    "rotary_planes",
    "rotary_tables",
    "rotate",
    "slots",
    "split",
    "to_regular",
    "tune_cpu",
    "use_onednn",
]
