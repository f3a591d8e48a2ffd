"""The interpreter runs Python as CPython does: classes, descriptors, operators, containers, the standard library."""

import pytest

from .cases_objects import CASES
from .interpret import same


@pytest.mark.parametrize("case", CASES, ids=lambda c: c[0].__name__)
def test_objects(case):
    fn, args, kwargs = case
    same(fn, *args, **kwargs)
