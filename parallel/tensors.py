"""The local tensor behind a parameter, plain or ``DTensor``, and over which ranks its other pieces lie."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate


def local(tensor: Tensor) -> Tensor:
    """This rank's piece, sharing memory with the tensor; the tensor itself where it is plain."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def local_grad(parameter: Tensor) -> Tensor | None:
    """This rank's piece of the gradient, laid out as the parameter is."""
    grad = parameter.grad
    if isinstance(grad, DTensor) and isinstance(parameter, DTensor):
        if grad.placements != parameter.placements:
            grad = grad.redistribute(placements=parameter.placements)
        return grad._local_tensor
    return grad


def sharded_axes(tensor: Tensor) -> tuple[int, ...]:
    """The axes of the tensor's mesh over which it is cut.

    Asked as "not replicated", since the placement of a twice-cut tensor does not count as ``is_shard()``.
    """
    if not isinstance(tensor, DTensor):
        return ()
    for placement in tensor.placements:
        assert not isinstance(placement, Partial), "a parameter holds values, not summands"
    return tuple(
        axis for axis, placement in enumerate(tensor.placements) if not isinstance(placement, Replicate)
    )


def full(tensor: Tensor) -> Tensor:
    """The whole tensor; a collective where it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
