"""A sample of torch's own database of modules: outputs, gradients and state as eager's, in one graph where possible.

`python bench/module_db.py` runs all of it.
"""

from __future__ import annotations

import itertools
import warnings

import argand
import module_db

# The program looks at values (CTCLoss at its lengths, GaussianNLLLoss at its variances), or makes its parameters.
SEVERAL_GRAPHS = ("nn.CTCLoss", "nn.GaussianNLLLoss", "nn.Lazy")
# Eager raises too.
RAISES = ("nn.FractionalMaxPool",)


def test_one_sample_of_each_module() -> None:
    warnings.filterwarnings("ignore")
    different, broken, count = [], [], 0
    for _, group in itertools.groupby(module_db.samples(), key=lambda s: (s.name.split("[")[0], s.name.split()[-1])):
        sample = next(group)
        one, differs, why = module_db.measure(sample, argand.compile, argand.reset)
        count += 1
        if differs is not None:
            different.append(f"{sample.name}: {differs}")
        if not one and not sample.name.startswith(SEVERAL_GRAPHS + RAISES):
            broken.append(f"{sample.name}: {why}")
    assert not different
    assert not broken
    assert count > 200


def test_options_object_and_questions_about_torch_function() -> None:
    """A module whose function takes an options object, and one whose forward only asks has_torch_function."""
    for name in ("nn.LinearCrossEntropyLoss", "nn.TransformerDecoderLayer", "nn.TransformerEncoderLayer"):
        for sample in itertools.islice(module_db.samples(name), 0, 40, 13):
            one, differs, why = module_db.measure(sample, argand.compile, argand.reset)
            assert one, f"{sample.name}: {why}"
            assert differs is None, f"{sample.name}: {differs}"
