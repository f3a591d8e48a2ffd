"""Which functions of numpy torch._numpy computes as numpy does, and the dtypes that both have."""

from __future__ import annotations

import torch

from argand.capture.facts.name_tables import words

LARGEST_BYTES = 1 << 26
DTYPES = {
    "float16": torch.float16, "float32": torch.float32, "float64": torch.float64, "int8": torch.int8,
    "int16": torch.int16, "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8, "bool": torch.bool,
    "complex64": torch.complex64, "complex128": torch.complex128,
}  # fmt: skip
UFUNCS = words(
    """
    add subtract multiply divide true_divide power float_power negative positive absolute fabs sign exp exp2 expm1 log
    log2 log10 log1p sqrt square cbrt reciprocal sin cos tan arcsin arccos arctan arctan2 sinh cosh tanh arcsinh
    arccosh arctanh hypot deg2rad rad2deg degrees radians maximum minimum fmax fmin floor ceil trunc rint isnan isinf
    isfinite signbit copysign logaddexp logaddexp2 heaviside equal not_equal less less_equal greater greater_equal
    logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor invert left_shift right_shift
    matmul conjugate floor_divide remainder fmod gcd lcm nextafter ldexp
    """
)
FUNCTIONS = words(
    """
    sum mean std var min max amin amax prod cumsum cumprod argmax argmin all any count_nonzero ptp average median
    quantile percentile diff cov corrcoef
    reshape ravel transpose swapaxes moveaxis rollaxis squeeze expand_dims atleast_1d atleast_2d atleast_3d concatenate
    stack vstack hstack dstack column_stack split array_split hsplit vsplit dsplit broadcast_to broadcast_arrays
    flip flipud fliplr rot90 roll tile repeat diag diagonal trace tril triu kron outer inner dot vdot tensordot einsum
    where clip round around copy array asarray zeros_like ones_like full_like empty_like full meshgrid sort take
    take_along_axis cross real imag angle isclose nan_to_num isreal iscomplex searchsorted pad vander append resize
    fix sinc
    """
)
METHODS = frozenset(
    words(
        """
    sum mean std var min max prod cumsum cumprod argmax argmin all any reshape transpose swapaxes ravel flatten squeeze
    copy clip round dot repeat take diagonal trace conj conjugate astype ptp
    """
    )
)
LINALG = frozenset(("norm", "multi_dot"))
FFT = frozenset(words("fft ifft rfft irfft fft2 ifft2 fftn ifftn fftshift ifftshift"))
INTEGER_ERRORS = frozenset(("floor_divide", "remainder", "fmod", "mod", "power", "divmod", "left_shift", "right_shift"))
BACKWARDS = frozenset(("flip", "flipud", "fliplr"))
UNDEFINED = frozenset(("empty_like",))
ITSELF = {
    name: positions
    for positions, names in {
        "0": "gradient i0 unwrap nansum nanprod nanmean nanstd nanvar nanmax nanmin nanargmax nanargmin nancumsum "
        "nancumprod nanmedian nanquantile nanpercentile partition argpartition lexsort argsort sort_complex histogram "
        "delete ascontiguousarray asfortranarray asanyarray msort linalg.inv linalg.det linalg.slogdet linalg.cholesky "
        "linalg.eigh linalg.eigvalsh linalg.svd linalg.svdvals linalg.pinv linalg.qr linalg.matrix_power linalg.cond "
        "linalg.matrix_rank linalg.tensorinv linalg.norm fft.hfft fft.ihfft fft.rfft2 fft.irfft2 fft.rfftn fft.irfftn "
        "packbits bartlett kaiser",
        "01": "convolve correlate digitize polyval trapezoid trapz isin in1d linspace logspace geomspace select choose "
        "linalg.solve polyfit array_equal cross inner outer dot vdot tensordot kron isclose searchsorted cov corrcoef "
        "percentile quantile linalg.tensorsolve append histogram2d polyadd polymul vecdot",
        "02": "insert",
        "012": "interp where clip",
        "w0": "fill_diagonal",
        "w02": "put place",
        "w012": "putmask copyto",
    }.items()
    for name in words(names)
}
"""Functions that numpy itself computes in the graph, and which arguments are data. "w": they write to the first one."""
METADATA = frozenset(words("iterable ndim shape size iscomplexobj isrealobj result_type"))
DATA_KEYWORDS = frozenset(("where", "weights", "initial"))
UFUNC_METHODS = {"reduce": "0", "accumulate": "0", "reduceat": "0", "outer": "01", "at": "w02"}
OWN_METHODS = {
    "argsort": "0", "argpartition": "0", "searchsorted": "01", "choose": "01", "sort": "w0", "partition": "w0",
    "put": "w02",
}  # fmt: skip
