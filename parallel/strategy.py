"""``Strategy``: the contract, carried by engines. All that does not depend on the engine is here, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from parallel import meta
from parallel.accounting import Memory, Traffic, count_traffic, memory
from parallel.batch import Batch, Nest, map_nest
from parallel.batchnorm import cut, has_batchnorm, refuse_single_rows, synchronise_batchnorm
from parallel.blocks import checkpoint_blocks, compile_blocks
from parallel.checkpoint.contents import Contents
from parallel.checkpoint.load import load as load_checkpoint
from parallel.checkpoint.save import Saver
from parallel.checkpoint.whole import full_state, load_full_state
from parallel.collectives import all_reduce, broadcast_object, gather_rows
from parallel.dropout import CurrentPart, key_dropout
from parallel.ema import EMA
from parallel.engine import Engine
from parallel.errors import ParallelError
from parallel.interface import Parallel, Precision, StepInfo
from parallel.loader import Loader, check_lengths
from parallel.mesh import World
from parallel.net import Net
from parallel.optimizer import Optimizer, Scaler
from parallel.plan import Plan
from parallel.progress import Progress
from parallel.refusals import BATCHNORM_IN_REPLICAS, BATCHNORM_OVER_PARTS, COMPILED_REPLICAS
from parallel.shared import refuse_shared
from parallel.signals import Listener, Notice
from parallel.spectral import SpectralNorms

_AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


class Strategy(Parallel):
    """One or two engines over a world of ranks.

    Args:
        engines: in the order in which they are applied to a module (tensor parallel first).
        local_batchnorm: let each rank normalise by its own rows, which does not equal one process.
    """

    def __init__(
        self,
        spec: str,
        engines: Sequence[Engine],
        world: World,
        *,
        precision: Precision = "fp32",
        accumulate: int = 1,
        local_batchnorm: bool = False,
        compile: bool = False,
        on_nan: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        if precision == "bf16-mixed" and world.device.type == "cuda" and not torch.cuda.is_bf16_supported():
            raise ParallelError("this device has no bfloat16: use precision fp16-mixed")
        self.spec = spec
        self.engines = list(engines)
        self.world = world
        self.rank, self.world_size, self.local_rank = world.rank, world.size, world.local_rank
        self.data_rank, self.data_size = world.data_rank, world.data_size
        self.device = world.device
        self.precision = precision
        self.accumulate = accumulate
        self.local_batchnorm = local_batchnorm
        self.compile = compile
        self.on_nan = on_nan
        self._progress = progress
        self._listener = Listener(world.all, world.device, self.is_main)
        self._dtype = torch.float64 if precision == "fp64" else torch.float32
        self._nets: list[Net] = []
        self._optimizers: list[Optimizer] = []
        self._current = CurrentPart()
        self._last_part = True
        self._seeds: dict[tuple[float, torch.dtype], Tensor] = {}
        self._saver = Saver(spec, world)
        self._grad_factor = 1.0
        for engine in self.engines:
            self._grad_factor *= engine.grad_factor()

    # Building

    def wrap(self, model: nn.Module | Callable[[], nn.Module], plan: Plan | None = None) -> nn.Module:
        source: meta.Source | None = None
        if isinstance(model, nn.Module):
            module = model
        elif any(engine.shards for engine in self.engines):
            module, source = meta.build(model, self.is_main)
        else:
            module = model()
        for net in self._nets:
            if net.module is module:
                raise ParallelError(f"this {net.name} is wrapped already")
        if any(engine.axes for engine in self.engines):
            refuse_shared(module, self._nets)
        plan = plan or Plan()
        plan.check(module)
        module.to(self.device if source is None else None, self._dtype)
        self._normalisation(module)
        key_dropout(module, self._current)
        if source is None:
            self._same_start(module)
        net = Net(module, plan, self._current, SpectralNorms(module))
        for engine in self.engines:
            if "tensor" in engine.axes:
                engine.place(net)
        if self.compile:
            if any(engine.splits_forward for engine in self.engines):
                raise COMPILED_REPLICAS.error(type(module).__name__)
            compile_blocks(module, plan)
        checkpoint_blocks(module, plan, self._current)
        for engine in self.engines:
            if "tensor" not in engine.axes:
                engine.place(net)
        if source is not None:
            meta.materialise(net, source, self.world)
        self._nets.append(net)
        return module

    def optimizer(
        self,
        nets: nn.Module | Sequence[nn.Module],
        cls: type[torch.optim.Optimizer],
        *,
        lr: float,
        groups: Callable[[str, nn.Parameter], Mapping[str, Any] | None] | None = None,
        schedule: Callable[[int], float] | None = None,
        clip_norm: float | None = None,
        **options: Any,
    ) -> Optimizer:
        modules = [nets] if isinstance(nets, nn.Module) else list(nets)
        records = [self._net(module) for module in modules]
        for engine in self.engines:
            engine.bind(records)
        for net in records:
            for average in net.emas:
                average.follow({name: flat.take(average.average[name]) for name, flat in net.held.items()})
        optimizer = Optimizer(
            records,
            cls,
            lr=lr,
            groups=groups,
            schedule=schedule,
            clip_norm=clip_norm,
            on_nan=self.on_nan,
            scaler=Scaler() if self.precision == "fp16-mixed" else None,
            options=options,
            factory=self.engines[-1].make_optimizer,
        )
        self._optimizers.append(optimizer)
        return optimizer

    def ema(self, net: nn.Module, decay: float) -> EMA:
        record = self._net(net)
        average = EMA(net, decay, settle=lambda: self._settle(record), pieces=record.pieces)
        record.emas.append(average)
        return average

    def loader(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        sampler: Callable[[int], Tensor] | None = None,
        drop_last: bool = False,
        workers: int = 0,
    ) -> Loader:
        loader = Loader(
            dataset,
            batch_size,
            rank=self.data_rank,
            size=self.data_size,
            move=self._move,
            device=self.device,
            shuffle=shuffle,
            seed=seed,
            sampler=sampler,
            drop_last=drop_last,
            workers=workers,
            before_epoch=self._check_tail,
            after_batch=self._listener.after_batch,
        )
        check_lengths(loader, self.world)
        return loader

    def normalised_together(self, rows: int) -> list[int]:
        return cut(
            rows, (self.data_size, self.accumulate, self.world.replicas) if self.local_batchnorm else ()
        )

    # One step

    def parts(self, batch: Batch) -> Iterator[Batch]:
        for net in self._nets:
            net.spectral.due()
        if self.accumulate == 1:
            self._current.set(batch)
            yield batch
            self._current.set(None)
            return
        try:
            for number, part in enumerate(batch.split(self.accumulate), start=1):
                self._last_part = number == self.accumulate
                self._current.set(part)
                yield part
        finally:
            self._last_part = True
            self._current.set(None)

    def autocast(self) -> AbstractContextManager[None]:
        dtype = _AUTOCAST.get(self.precision)
        if dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype)

    def backward(self, loss: Tensor, opt: Optimizer) -> None:
        last = self._last_part
        for net in opt.nets:
            if net.reduced and not last:
                raise ParallelError("backward after the gradients were reduced: call p.step first")
        others = self._others(opt) if len(self._nets) > len(opt.nets) else []
        kept = self._keep_reduced(opt) if last else None
        reduce = last and not kept
        for engine in self.engines:
            engine.before_backward(opt.nets, loss, reduce)
        self.engines[-1].backward(opt.nets, loss, self._seed(loss, opt))
        for engine in self.engines:
            engine.after_backward(opt.nets, reduce)
        if kept:
            for engine in self.engines:
                engine.reduce_late([slot.parameter for slot in opt.slots])
            for parameter, grad in kept:
                parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
        for net in others:
            # Asked for now: FSDP2 may have had them gathered until this backward.
            for parameter in net.module.parameters():
                parameter.grad = None
        for net in opt.nets:
            net.pending, net.reduced = True, last

    def step(self, opt: Optimizer) -> StepInfo:
        for net in opt.nets:
            if not net.reduced:
                raise ParallelError(
                    "p.step without a backward on the last of p.parts(batch): there is no whole gradient"
                )
            net.pending = net.reduced = False
            self._settle(net)  # a forward since the backward may have gathered what is about to change
        for engine in self.engines:
            engine.collect(opt.nets)
        info = opt.step()
        for net in opt.nets:
            for average in net.emas:
                average.update()
        if self._progress is not None and opt is self._optimizers[0]:
            self._progress.note(opt.steps)
        return info

    def notice(self) -> Notice:
        return self._listener.notice()

    def interruptible(self) -> AbstractContextManager[None]:
        return self._listener.interruptible()

    @contextmanager
    def frozen(self, *nets: nn.Module) -> Iterator[None]:
        records = [self._net(net) for net in nets]
        changed: list[nn.Parameter] = []
        for net in records:
            self._settle(net)
            changed += [parameter for parameter in net.module.parameters() if parameter.requires_grad]
        for parameter in changed:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for net in records:
                self._settle(net)
            for parameter in changed:
                parameter.requires_grad_(True)

    # Values over ranks

    def gather(self, values: Nest, index: Tensor) -> Nest:
        places = gather_rows(index.to(self.device), self.world.data)
        order = torch.argsort(places, stable=True)
        return map_nest(
            lambda rows: gather_rows(rows.detach(), self.world.data).index_select(0, order), values
        )

    def sum(self, value: Tensor) -> Tensor:
        return all_reduce(value.detach().clone(), self.world.data)

    def mean(self, value: Tensor) -> Tensor:
        return self.sum(value) / self.data_size

    def broadcast(self, value: Any) -> Any:
        return broadcast_object(value, self.world.all)

    def barrier(self) -> None:
        if self.world.all is not None and dist.is_initialized():  # closed, there is nobody to wait for
            dist.barrier(group=self.world.all)

    # State

    def state_dict(self, net: nn.Module) -> dict[str, Tensor]:
        return full_state(self._net(net), self.is_main)

    def load_state_dict(self, net: nn.Module, state: Mapping[str, Tensor]) -> None:
        load_full_state(self._net(net), state, self.world.all)

    def save(
        self,
        folder: Path | str,
        models: Mapping[str, nn.Module],
        emas: Mapping[str, EMA] | None = None,
        optimizers: Mapping[str, Optimizer] | None = None,
        loaders: Mapping[str, Loader] | None = None,
        extra: Mapping[str, Any] | None = None,
        background: bool = False,
    ) -> None:
        contents = self._contents(models, emas, optimizers, loaders)
        self._saver.save(Path(folder), contents, extra or {}, background)

    def wait_for_saves(self) -> None:
        self._saver.wait()

    def load(
        self,
        folder: Path | str,
        models: Mapping[str, nn.Module],
        emas: Mapping[str, EMA] | None = None,
        optimizers: Mapping[str, Optimizer] | None = None,
        loaders: Mapping[str, Loader] | None = None,
    ) -> dict[str, Any]:
        return load_checkpoint(Path(folder), self._contents(models, emas, optimizers, loaders), self.world)

    # Accounting

    def memory_per_rank(self) -> list[Memory]:
        """What each rank holds for all nets and optimizers, in rank order."""
        own = memory(self._nets, self._optimizers)
        if self.world.all is None:
            return [own]
        ranks: list[Memory | None] = [None] * self.world_size
        dist.all_gather_object(ranks, own, group=self.world.all)
        return ranks  # type: ignore[return-value]

    def traffic(self) -> AbstractContextManager[Traffic]:
        """``with p.traffic() as counted:`` counts this rank's collectives and their bytes, by kind."""
        return count_traffic()

    def close(self) -> None:
        self._listener.close()
        self._saver.close()
        for engine in self.engines:
            engine.close()
        self._nets.clear()
        self._optimizers.clear()
        self.world.leave()

    # Inside

    def _settle(self, net: Net) -> None:
        for engine in self.engines:
            engine.settle(net)

    def _net(self, module: nn.Module) -> Net:
        for net in self._nets:
            if net.module is module:
                return net
        raise ParallelError(f"this {type(module).__name__} was not made by p.wrap")

    def _normalisation(self, module: nn.Module) -> None:
        if self.local_batchnorm or not has_batchnorm(module):
            return
        if self.accumulate > 1:
            raise BATCHNORM_OVER_PARTS.error(type(module).__name__)
        if any(engine.splits_forward for engine in self.engines):
            raise BATCHNORM_IN_REPLICAS.error(type(module).__name__)
        if self.data_size > 1:
            synchronise_batchnorm(module, self.world.data)

    def _same_start(self, module: nn.Module) -> None:
        if self.world.all is not None:
            with torch.no_grad():
                for tensor in (*module.parameters(), *module.buffers()):
                    dist.broadcast(tensor.detach(), src=0, group=self.world.all)

    def _contents(
        self,
        models: Mapping[str, nn.Module],
        emas: Mapping[str, EMA] | None,
        optimizers: Mapping[str, Optimizer] | None,
        loaders: Mapping[str, Loader] | None,
    ) -> Contents:
        nets = {name: self._net(module) for name, module in models.items()}
        return Contents(nets, emas or {}, optimizers or {}, loaders or {})

    def _move(self, nest: Nest) -> Nest:
        def move(tensor: Tensor) -> Tensor:
            dtype = self._dtype if tensor.is_floating_point() else None
            return tensor.to(self.device, dtype, non_blocking=True)

        return map_nest(move, nest)

    def _check_tail(self, loader: Loader, rows: int) -> None:
        refuse_single_rows([net.module for net in self._nets], loader, rows, self.normalised_together)

    def _seed(self, loss: Tensor, opt: Optimizer) -> Tensor:
        """The gradient that backward starts from: undoes the engine's averaging and applies the loss scale."""
        value = self._grad_factor * (opt.scaler.scale if opt.scaler is not None else 1.0)
        seed = self._seeds.get((value, loss.dtype))
        if seed is None:
            seed = self._seeds[value, loss.dtype] = torch.tensor(value, dtype=loss.dtype, device=loss.device)
        return seed

    def _others(self, opt: Optimizer) -> list[Net]:
        """Trainable nets that this backward is not for; what it adds to their gradients is thrown away."""
        found: list[Net] = []
        for net in self._nets:
            if net in opt.nets or not any(parameter.requires_grad for parameter in net.module.parameters()):
                continue
            if net.pending:
                raise ParallelError(
                    f"{net.name} has gradients that no p.step has used yet, and this backward is for another "
                    "optimizer: step first, or put p.frozen(net) round this backward"
                )
            found.append(net)
        return found

    def _keep_reduced(self, opt: Optimizer) -> list[tuple[nn.Parameter, Tensor]]:
        """Sums of an earlier backward of the last part, set aside where the engine would sum them a second time."""
        if all(engine.adds for engine in self.engines) or not any(net.reduced for net in opt.nets):
            return []
        kept = [
            (slot.parameter, slot.parameter.grad) for slot in opt.slots if slot.parameter.grad is not None
        ]
        for parameter, _ in kept:
            parameter.grad = None
        return kept
