"""The C extension; everything else about the build is in pyproject.toml."""

import os
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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


class WithKernels(build_ext):
    """Compiles argand's own kernels, too, for this machine; first calls compile those that fail here."""

    def run(self) -> None:
        super().run()
        if debug or sanitize:
            return
        place = os.path.join("src" if self.inplace else self.build_lib, "argand/runtime/kernels/texts")
        env = {**os.environ, "PYTHONPATH": os.path.abspath("src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "argand.runtime.kernels.texts.install", os.path.join(place, "installed")]
        subprocess.run(command, env=env, check=False)


setup(
    cmdclass={"build_ext": WithKernels},
    ext_modules=[
        Extension(
            "argand._core._C",
            [name for name in files if name.endswith(".c")],
            include_dirs=rooms,
            depends=[name for name in files if name.endswith(".h")],
            extra_compile_args=flags,
            extra_link_args=link,
        ),
    ],
)
