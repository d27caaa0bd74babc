"""A table's rows as the network takes them: dense tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def densify(x: csr_matrix, index: Tensor) -> Tensor:
    """Rows ``index`` (int64 [rows], on CPU) of a sparse table as a dense tensor [rows, columns].

    Sparse tables stay sparse as a whole and become dense a micro-batch at a time, as in the official code. A
    sparse product would save memory in the first layer only, whose weights and gradients are dense, and would
    need its own kernel for each precision, device and way to cut that layer; with dense rows a strategy sees
    nothing special.
    """
    return torch.from_numpy(x[index.numpy()].toarray())
