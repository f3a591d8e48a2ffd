"""Programs that hand tensors to code which looks into them: at their memory, values, storage or class."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.dlpack

X = Callable[[torch.Tensor], Any]


def saved(x: torch.Tensor) -> Any:
    stream = io.BytesIO()
    torch.save(x * 2, stream)
    stream.seek(0)
    return torch.load(stream)


PROGRAMS: dict[str, X] = {
    "numpy": lambda x: torch.from_numpy((x * 2).numpy()) + 1,
    "tolist": lambda x: sum((x * 2).tolist()) + x,
    "data_ptr": lambda x: x + ((x * 2).data_ptr() != 0),
    "storage": lambda x: x + len((x * 2).untyped_storage()),
    "storage offset": lambda x: x + (x * 2)[1:].storage_offset(),
    "storage nbytes": lambda x: x + (x * 2).untyped_storage().nbytes(),
    "array": lambda x: x + float((x * 2).__array__().sum()),
    "pickle": lambda x: pickle.loads(pickle.dumps(x * 2)) + x,
    "deepcopy": lambda x: copy.deepcopy(x * 2) + x,
    "copy": lambda x: copy.copy(x * 2) + x,
    "save": saved,
    "dlpack": lambda x: torch.from_dlpack(x * 2) + 1,
    "to_dlpack": lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x * 2)) + 1,
    "item": lambda x: x + (x * 2).sum().item(),
    "item of many": lambda x: x + (x * 2).item(),
    "bool": lambda x: x + bool((x * 2).sum() > 0),
    "bool of many": lambda x: x + bool(x * 2),
    "float": lambda x: x + float((x * 2).sum()),
    "int": lambda x: x + int((x * 2).sum()),
    "index": lambda x: x + [1, 2, 3][torch.tensor(1)],
    "format": lambda x: x + len(f"{(x * 2).sum():.2f}"),
    "repr": lambda x: x + len(repr(x * 2)),
    "sparse": lambda x: (x * 2).to_sparse().to_dense() + 1,
    "sparse csr": lambda x: (x * 2).reshape(2, 2).to_sparse_csr().to_dense() + 1,
    "mkldnn": lambda x: (x * 2).to_mkldnn().to_dense() + 1,
    "quantize": lambda x: torch.quantize_per_tensor(x * 2, 0.1, 0, torch.qint8).dequantize() + 1,
    "nested": lambda x: torch.nested.nested_tensor([x * 2, x]).to_padded_tensor(0.0) + 1,
    "named": lambda x: (x * 2).refine_names("N").rename(None) + 1,
    "inverse of singular": lambda x: torch.linalg.inv(torch.outer(x, x)),
    "cholesky": lambda x: torch.linalg.cholesky(torch.eye(4) * (x[0] + 5)) + x,
    "cholesky of negative": lambda x: torch.linalg.cholesky(-torch.eye(4)) + x,
    "inv_ex": lambda x: torch.linalg.inv_ex(torch.eye(4) * 2, check_errors=True)[0] + x,
    "wrong shapes": lambda x: x + torch.ones(3),
    "wrong matmul": lambda x: torch.ones(2, 3) @ torch.ones(2, 3) + x,
    "wrong type": lambda x: torch.add(x, "a"),
    "wrong dtype": lambda x: torch.bitwise_and(x, x),
    "wrong view": lambda x: x.view(3),
    "wrong index": lambda x: x[7],
    "equal": lambda x: x + torch.equal(x * 2, x),
    "allclose": lambda x: x + torch.allclose(x * 2, x),
    "is_nonzero": lambda x: x + (x * 2)[:1].is_nonzero(),
    "nonzero": lambda x: (x > 0).nonzero().sum() + x,
    "unique": lambda x: torch.unique(x).sum() + x,
    "masked_select": lambda x: x.masked_select(x > 0).sum() + x,
    "share_memory": lambda x: (x * 2).share_memory_() + 1,
    "pin": lambda x: x + (x * 2).is_pinned(),
    "is_shared": lambda x: x + (x * 2).is_shared(),
    "element_size": lambda x: x + (x * 2).element_size(),
    "hash": lambda x: x + (hash(x) == hash(x)),
    "typed storage": lambda x: x + (x * 2).storage().size(),
    "set_": lambda x: torch.empty(0).set_((x * 2).untyped_storage(), 0, (4,)) + 1,
    "to device": lambda x: (x * 2).to("cpu") + 1,
    "meta on purpose": lambda x: (x * 2).to("meta").shape[0] + x,
    "lstm": lambda x: torch.nn.LSTM(4, 3)(x.reshape(1, 1, 4))[0] * 0,
    "frombuffer": lambda x: torch.frombuffer(bytearray(16), dtype=torch.float32) + x,
    "tensor of tensors": lambda x: torch.tensor([x[0], x[1]]) + 1,
    "histc": lambda x: torch.histc(x, 4) + 1,
    "bincount": lambda x: torch.bincount(x.long().abs()).sum() + x,
    "repeat_interleave": lambda x: torch.repeat_interleave(x, torch.tensor([1, 2, 0, 1])) + 1,
    "combinations": lambda x: torch.combinations(x) + 1,
    "assert_close": lambda x: torch.testing.assert_close(x, x * 2),
    "multinomial": lambda x: torch.multinomial(x.abs() * 0 + torch.tensor([0.0, 1, 0, 0]), 1) + 1,
}
