"""The C extension; everything else about the build is in pyproject.toml."""

import os

from setuptools import Extension, setup

debug = os.environ.get("ARGAND_BUILD_DEBUG") == "1"
sanitize = os.environ.get("ARGAND_BUILD_ASAN") == "1"
flags = ["-std=c11", "-fvisibility=hidden"]
flags += ["-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-missing-field-initializers"]
flags += ["-O0", "-g3", "-DARGAND_DEBUG=1"] if debug or sanitize else ["-O2", "-g1"]
link: list[str] = []
if sanitize:
    flags += ["-fsanitize=address", "-fno-omit-frame-pointer"]
    link += ["-fsanitize=address"]

core = "src/argand/_core"
sources = sorted(os.path.join(core, name) for name in os.listdir(core) if name.endswith(".c"))
headers = sorted(os.path.join(core, name) for name in os.listdir(core) if name.endswith(".h"))
setup(
    ext_modules=[
        Extension("argand._core._C", sources, depends=headers, extra_compile_args=flags, extra_link_args=link),
    ]
)
