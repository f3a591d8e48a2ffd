"""Triton source text → machine code. The one place that imports Triton's compiler."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from argand.errors import GpuError
from argand.runtime.gpu.device.kernel_image import Image
from argand.runtime.gpu.device.target import GpuTarget
from argand.runtime.gpu.kernels import source
from argand.runtime.gpu.kernels.spec import LaunchSpec

# Products and sums that eager rounds one by one are not fused into multiply-adds: results stay those of its kernels.
# Where one rounding is meant, the text says `tl.fma`. Memory-bound kernels lose nothing by it.
FUSE_MULTIPLY_ADD = False
# The device library keeps numbers near zero, as torch's kernels do.
FLUSH_DENORMALS = False
_ALIGNED = (("tt.divisibility", 16),)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)([^{]*)\{")
_PARAM = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)(?=[\s,])[^,]*")
_THREADS = re.compile(r"\.(?:reqntid|maxntid)\s+(\d+)")
# What needs more of a launch than a grid and arguments: metadata of the compiler, and the values that need nothing.
_PLAIN_LAUNCH: Mapping[str, tuple[Any, ...]] = {
    "num_ctas": (1,), "cluster_dims": ((1, 1, 1), [1, 1, 1]), "launch_cooperative_grid": (False,),
    "launch_pdl": (False,), "global_scratch_size": (0,), "profile_scratch_size": (0,),
    "tensordesc_meta": ([], (), {}), "instrumentation_mode": ("",),
}  # fmt: skip


def options_of(spec: LaunchSpec) -> dict[str, Any]:
    """The compiler's options."""
    return {
        "num_warps": spec.num_warps,
        "num_stages": spec.num_stages,
        "sanitize_overflow": False,
        "debug": spec.checks,
        "enable_fp_fusion": FUSE_MULTIPLY_ADD,
        "enable_reflect_ftz": FLUSH_DENORMALS,
    }


def compile_image(text: str, spec: LaunchSpec, target: GpuTarget, *, aligned: bool, filename: str = "") -> Image:
    """The machine code of one kernel.

    Arguments:
        text: a Python module that has it.
        aligned: pointers are multiples of 16, which lets accesses be as wide.
        filename: of the text, for the line table of the machine code.

    Raises:
        GpuError: Triton is missing, refuses the text, or made what argand does not launch.
    """
    metadata, products = compile_stages(text, spec, target, aligned=aligned, filename=filename)
    for name, plain in _PLAIN_LAUNCH.items():
        if metadata.get(name, plain[0]) not in plain:
            raise GpuError(
                f"kernel {spec.name} needs more of a launch than argand does: {name} = {metadata[name]!r}",
                remedy="this is a bug in argand: please report it with the script",
            )
    return _image(spec, metadata, products)


def compile_stages(
    text: str, spec: LaunchSpec, target: GpuTarget, *, aligned: bool, filename: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Triton's metadata of one kernel, and what each of its stages made: "ttir", "ttgir", ..., "ptx", "cubin".

    Arguments, raises: as `compile_image`.
    """
    with _refusals(spec):
        return _compile(ast_source(text, spec, aligned=aligned, filename=filename), spec, target)


def compile_by_triton(text: str, spec: LaunchSpec, target: GpuTarget, *, aligned: bool) -> Any:
    """Triton's own object for a compiled kernel, which it keeps in its own cache. Raises as `compile_image`."""
    with _refusals(spec):
        import triton

        source = ast_source(text, spec, aligned=aligned)
        return triton.compile(source, target=_machine(target), options=options_of(spec))


@contextlib.contextmanager
def _refusals(spec: LaunchSpec) -> Iterator[None]:
    """Errors of the compiler, which has many kinds, as one kind."""
    try:
        yield
    except ImportError as error:
        raise GpuError(f"kernels cannot be compiled: {error}", remedy="pip install triton") from error
    except GpuError:
        raise
    except Exception as error:
        raise GpuError(
            f"Triton refused kernel {spec.name}{_statement(error)}: {type(error).__name__}: {error}",
            remedy="this is a bug in argand: please report it with the script",
        ) from error


def _statement(error: Exception) -> str:
    """The statement that the compiler was at, and the comment which says what of the program it computes."""
    source, node = getattr(error, "src", None), getattr(error, "node", None)
    number = getattr(node, "lineno", 0)
    if not isinstance(source, str) or not number:
        return ""
    lines = [line.strip() for line in source.split("\n")[:number]]
    origin = next((line.removeprefix("# ") for line in reversed(lines) if line.startswith("# ")), "")
    return f" at `{lines[-1]}`" + (f", which computes {origin}" if origin else "")


def ast_source(text: str, spec: LaunchSpec, *, aligned: bool, filename: str = "") -> Any:
    """What Triton compiles: the function with the types of its arguments."""
    from triton.compiler import ASTSource

    function = getattr(source.execute(text, filename), spec.name)
    names = list(function.arg_names)
    count = len(spec.signature)
    constants = dict(spec.constants)
    if len(names) != count + len(constants) or set(names[count:]) != set(constants):
        raise GpuError(
            f"kernel {spec.name} has the arguments {names}, and {count} types and the constants {list(constants)}",
            remedy="this is a bug in argand: please report it with the script",
        )
    signature = {**dict(zip(names, spec.signature)), **dict.fromkeys(names[count:], "constexpr")}
    pointers = [place for place, kind in enumerate(spec.signature) if kind[0] == "*"] if aligned else []
    attrs = {(place,): [list(attr) for attr in _ALIGNED] for place in (*pointers, *spec.multiples)}
    return ASTSource(function, signature, {name: constants[name] for name in names[count:]}, attrs)


def _machine(target: GpuTarget) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(target.backend, target.arch, target.warp_size)


def _compile(source: Any, spec: LaunchSpec, target: GpuTarget) -> tuple[dict[str, Any], dict[str, Any]]:
    import triton

    machine = _machine(target)
    knobs = triton.knobs.compilation
    watched = ("override", "dump_ir", "use_ir_loc", "listener")
    if any(getattr(knobs, name, None) for name in watched) or _inspected(triton):
        compiled = triton.compile(source, target=machine, options=options_of(spec))
        return compiled.metadata._asdict(), dict(compiled.asm)
    return _run_stages(source, machine, options_of(spec))


def _inspected(triton: Any) -> bool:
    return getattr(triton.knobs.runtime, "add_stages_inspection_hook", None) is not None


def _run_stages(source: Any, machine: Any, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `triton.compile` does, without its cache: that hashes all of Triton first, and argand has its own."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    backend = make_backend(machine)
    parsed = backend.parse_options(dict(options))
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    implementation, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
    product = source.make_ir(machine, parsed, implementation, modules, context)
    metadata: dict[str, Any] = {"target": machine, **vars(parsed)}
    products: dict[str, Any] = {}
    for name, stage in stages.items():
        product = stage(product, metadata)
        products[name] = product if isinstance(product, (str, bytes)) else str(product)
    return metadata, products


def _image(spec: LaunchSpec, metadata: Mapping[str, Any], products: Mapping[str, Any]) -> Image:
    code = products.get("cubin", products.get("hsaco"))
    if not isinstance(code, bytes):
        raise GpuError(f"Triton made no machine code of kernel {spec.name}, but {list(products)}")
    wanted = tuple(8 if kind[0] == "*" or kind == "i64" else 4 for kind in spec.signature)
    if "ptx" not in products:
        block = int(metadata["num_warps"]) * int(metadata["warp_size"])
        return Image(str(metadata["name"]), block, int(metadata["shared"]), wanted, code)
    entry = _ENTRY.search(products["ptx"])
    if entry is None:
        raise GpuError(f"Triton's assembly of kernel {spec.name} has no entry")
    symbol, listed, directives = entry.groups()
    params = tuple(int(bits) // 8 for bits in _PARAM.findall(listed + ","))
    rest, threads = params[len(wanted) :], _THREADS.search(directives)
    if params[: len(wanted)] != wanted or any(size != 8 for size in rest) or threads is None:
        raise GpuError(
            f"Triton gave kernel {spec.name} the parameters {params}, for the arguments {spec.signature}",
            remedy="this version of Triton does what argand does not know: please report it",
        )
    return Image(symbol, int(threads.group(1)), int(metadata["shared"]), params, code)
