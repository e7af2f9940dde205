"""Compile the kernels for a GPU that need not be there: `compile_triton.py CAPABILITY DTYPE` prints their shared memory as JSON.

Run by test_triton.py in a process of its own.
"""

import json
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from polaformer.ops.triton import backward_kernels, forward_kernels
from polaformer.ops.triton.configs import CONFIGS

KERNELS = [
    forward_kernels.key_state,
    forward_kernels.merge_state,
    forward_kernels.query_output,
    backward_kernels.query_gradient,
    backward_kernels.state_gradient,
    backward_kernels.key_gradient,
]
STORED = {"q", "k", "v", "grad", "output", "grad_q", "grad_k", "grad_v"}
NUMBERS = {"heads", "tokens", "chunk", "chunks", "blocks", "key_count"}


def compile_kernel(kernel, capability, dtype):
    config = CONFIGS[0]
    constants = {
        "D": 64, "E": 64, "HAS_MASK": True, "TF32": dtype != "fp32", "PARTS": config.rows,
        "ROWS": config.rows, "CHANNELS": config.channels, "VALUES": config.values,
    }  # fmt: skip
    signature, values, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants or name.endswith("_column"):
            signature[name], values[(place,)] = "constexpr", constants.get(name, 1)
        elif name in NUMBERS or name.endswith(("_batch", "_head", "_row")):
            signature[name] = "i32"
        elif name == "log2_eps":
            signature[name] = "fp32"
        else:
            signature[name] = "*u8" if name == "mask" else f"*{dtype}" if name in STORED else "*fp32"
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, values, attributes)
    options = {"num_warps": config.warps, "num_stages": config.stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


if __name__ == "__main__":
    capability, dtype = int(sys.argv[1]), sys.argv[2]
    needed = {kernel.__name__: compile_kernel(kernel, capability, dtype).metadata.shared for kernel in KERNELS}
    sys.stdout.write(json.dumps(needed))
