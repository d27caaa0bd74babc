"""One process, the rows of each forward split over its devices: torch's DataParallel, or threads where there is no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import gather as gather_from_devices
from torch.nn.parallel import replicate, scatter

from parallel.batch import Batch, Nest, map_nest
from parallel.engine import Engine
from parallel.mesh import World
from parallel.net import Net
from parallel.refusals import RECOMPUTED_REPLICAS


class DP(Engine):
    """Replicas share the parameters, so their gradients add up by themselves; only the first keeps its buffers.

    That is DataParallel's way. On a machine without GPUs the replicas run in threads of this process.
    """

    adds: ClassVar[bool] = True
    splits_forward: ClassVar[bool] = True

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._threads = ThreadPoolExecutor(world.replicas, thread_name_prefix="replica")

    def place(self, net: Net) -> None:
        if self.world.device.type == "cuda" and net.plan.checkpoint:
            raise RECOMPUTED_REPLICAS.error(type(net.module).__name__)
        net.module.forward = _SplitForward(net, self.world, self._threads)

    def close(self) -> None:
        self._threads.shutdown()


class _SplitForward:
    def __init__(self, net: Net, world: World, threads: ThreadPoolExecutor) -> None:
        self.net, self.world, self.threads = net, world, threads
        self.module, self.current = net.module, net.current

    def __call__(self, *args: Any, **kwargs: Any) -> Nest:
        part = self.current.part
        rows = _rows((args, kwargs)) if part is None else len(part)
        count = min(self.world.replicas, rows)
        if count < 2:
            return type(self.module).forward(self.module, *args, **kwargs)
        self.net.spectral.advance()
        bounds = [(rows * k // count, rows * (k + 1) // count) for k in range(count)]
        inputs = [_take((args, kwargs), rows, *bound) for bound in bounds]
        if self.world.device.type == "cuda":
            inputs = [scatter(given, [device])[0] for device, given in enumerate(inputs)]
            modules = [_without_split(replica) for replica in replicate(self.module, range(count))]
        else:
            modules = [self.module, *(_share(self.module) for _ in range(count - 1))]
        state = _ThreadState(self.world.device.type)
        parts = [part.rows(*bound) if part is not None else None for bound in bounds]
        calls = self.current.snapshot()[1]
        work = [
            self.threads.submit(self._one, state, module, given, own, calls)
            for module, given, own in zip(modules, inputs, parts, strict=True)
        ]
        results = [future.result() for future in work]
        outputs = [output for output, _ in results]
        if part is not None:
            self.current.restore((part, results[0][1]))
        if self.world.device.type == "cuda":
            outputs = [gather_from_devices([output], self.world.device) for output in outputs]
        return _join(outputs, [stop - start for start, stop in bounds])

    def _one(
        self, state: _ThreadState, module: nn.Module, given: Any, part: Batch | None, calls: dict[str, int]
    ) -> tuple[Nest, dict[str, int]]:
        args, kwargs = given
        with state, self.current.in_thread(part, calls) as own:
            return type(module).forward(module, *args, **kwargs), own


class _ThreadState:
    """Grad mode and autocast of the calling thread, for the threads that work for it."""

    def __init__(self, device: str) -> None:
        self.grad = torch.is_grad_enabled()
        self.device = device
        self.autocast = torch.is_autocast_enabled(device)
        self.dtype = torch.get_autocast_dtype(device)

    def __enter__(self) -> None:
        torch.set_grad_enabled(self.grad)
        torch.set_autocast_enabled(self.device, self.autocast)
        torch.set_autocast_dtype(self.device, self.dtype)

    def __exit__(self, *_: object) -> None:
        torch.set_autocast_enabled(self.device, False)
        torch.clear_autocast_cache()


def _share(module: nn.Module) -> nn.Module:
    """A replica: the same parameters, buffers of its own."""
    replica: nn.Module = module._replicate_for_data_parallel()
    replica._parameters = dict(module._parameters)
    replica._buffers = {name: None if b is None else b.clone() for name, b in module._buffers.items()}
    replica._modules = {name: None if m is None else _share(m) for name, m in module._modules.items()}
    return replica


def _without_split(replica: nn.Module) -> nn.Module:
    replica.__dict__.pop("forward", None)
    return replica


def _rows(nest: Nest) -> int:
    counts: list[int] = []
    map_nest(lambda tensor: counts.append(tensor.shape[0]) if tensor.dim() else None, nest)
    return counts[0] if counts else 0


def _take(nest: Nest, rows: int, start: int, stop: int) -> Nest:
    """Rows ``start`` to ``stop`` of each tensor; of each copy, where a tensor stacks several copies of the rows."""

    def take(tensor: Tensor) -> Tensor:
        if not tensor.dim() or not rows or tensor.shape[0] % rows:
            return tensor
        return tensor.unflatten(0, (-1, rows))[:, start:stop].flatten(0, 1)

    return map_nest(take, nest)


def _join(outputs: Sequence[Nest], rows: Sequence[int]) -> Nest:
    first = outputs[0]
    if isinstance(first, Tensor):
        pieces = [output.unflatten(0, (-1, count)) for output, count in zip(outputs, rows, strict=True)]
        return torch.cat(pieces, 1).flatten(0, 1)
    if isinstance(first, dict):
        return type(first)((key, _join([output[key] for output in outputs], rows)) for key in first)
    if isinstance(first, tuple | list):
        return type(first)(_join(members, rows) for members in zip(*outputs, strict=True))
    return first
