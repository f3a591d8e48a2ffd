"""The interpreter runs Python as CPython does: control flow, calls, closures, exceptions, with, generators, match."""

import pytest

from .cases_core import CASES
from .interpret import same


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__doc__ or c[0].__name__)
def test_core(case):
    fn, args, kwargs = case
    same(fn, *args, **kwargs)
