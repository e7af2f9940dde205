"""Builds the C++ kernel of the `native` backend; everything else about the package stands in pyproject.toml.

Without a C++ compiler the package installs all the same and computes with the backends that need none.
"""

import platform
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("src/polaformer/ops/native")
FLAGS = ["-std=c++17", "-O3", "-fvisibility=hidden", "-ffp-contract=fast", "-fno-math-errno", "-pthread"]

kernel = Extension(
    "polaformer.ops.native._kernel",
    sources=sorted(str(file) for file in FOLDER.glob("*.cpp")),
    depends=sorted(str(file) for file in FOLDER.glob("*.h")),
    language="c++",
    extra_compile_args=FLAGS if platform.system() != "Windows" else ["/std:c++17", "/O2"],
    extra_link_args=["-pthread"] if platform.system() != "Windows" else [],
    py_limited_api=True,  # it holds no Python: one file serves every version
    optional=True,
)

setup(ext_modules=[kernel], options={"bdist_wheel": {"py_limited_api": "cp310"}})
