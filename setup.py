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
rooms = [core, *(os.path.join(core, name) for name in ("device", "guards", "hook", "tensors"))]
files = sorted(os.path.join(room, name) for room in rooms for name in os.listdir(room))
setup(
    ext_modules=[
        Extension(
            "argand._core._C",
            [name for name in files if name.endswith(".c")],
            include_dirs=rooms,
            depends=[name for name in files if name.endswith(".h")],
            extra_compile_args=flags,
            extra_link_args=link,
        ),
    ]
)
