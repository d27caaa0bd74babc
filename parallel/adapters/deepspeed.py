"""DeepSpeed's ZeRO (Rajbhandari et al. 2020): it cuts, gathers, sums and steps; what is summed when is the contract's.

One DeepSpeed engine an optimizer, over the nets that it steps, made when the optimizer is: several in a process know
nothing of one another. The engine's ``forward`` is never called: the modules are, by whatever method, as often as one
likes. Gradients stay with the parameters (``coalesce_grad_reduction``) until the step, and are summed then, once. So what
DeepSpeed gets wrong of two forwards before one backward, or of a backward through another engine's model, has no place to
go wrong in.

DeepSpeed steps one flat tensor. Here it passes the step on to the torch optimizer over the pieces that this
tensor consists of, each with its own options, and left out where it has no gradient.
"""

from __future__ import annotations

import logging
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

with redirect_stdout(StringIO()):  # where it reports what it finds, and results belong
    import deepspeed
    import deepspeed.ops
    from deepspeed import comm
    from deepspeed.accelerator import get_accelerator
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero import parameter_offload
    from deepspeed.utils import groups as process_groups

from parallel.adapters.config import Settled, engines_own
from parallel.adapters.environment import as_launched
from parallel.engine import Engine
from parallel.errors import ParallelError
from parallel.flat import Flat
from parallel.launcher import Options
from parallel.net import Net
from parallel.redirect import own_methods
from parallel.refusals import STEPPED_TWICE

# It calls torch by names that torch would like to see replaced, once a rank and place.
warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)

SETTLED = (
    Settled("train_batch_size", "the loader's batch size"),
    Settled("train_micro_batch_size_per_gpu", "the loader's batch size"),
    Settled("gradient_accumulation_steps", "--accumulate"),
    Settled("managed_gradient_accumulation", "--accumulate", (True,)),
    Settled("gradient_clipping", "the optimizer's clip_norm", (0, 0.0)),
    Settled("prescale_gradients", "the loss over the global batch", (False,)),
    Settled("gradient_predivide_factor", "the loss over the global batch", (1, 1.0)),
    Settled("optimizer", "the trainer's optimizer"),
    Settled("scheduler", "the optimizer's schedule"),
    Settled("fp16.enabled", "--precision", (False,)),
    Settled("bf16.enabled", "--precision", (False,)),
    Settled("amp.enabled", "--precision", (False,)),
    Settled("torch_autocast.enabled", "--precision", (False,)),
    Settled("data_types", "--precision"),
)


def settled(stage: int, offload: bool, double: bool) -> tuple[Settled, ...]:
    """What the configuration of a stage may not say otherwise."""
    place = ("cpu",) if offload else ("none",)
    return (
        *SETTLED,
        Settled("communication_data_type", "--precision", () if double else ("fp32",)),
        *([Settled("zero_optimization.reduce_scatter", "--precision", (False,))] if double else []),
        Settled("zero_optimization.stage", "--parallel", (stage,)),
        Settled("zero_optimization.offload_optimizer.device", "--parallel", place),
        Settled("zero_optimization.offload_param.device", "--parallel", place if stage == 3 else ("none",)),
    )


class _DeepSpeed(Engine, ABC):
    """What the stages have in common.

    Attributes:
        offload: keep what is stepped (under stage 3 also the pieces of the weights) in host memory.
    """

    axes: ClassVar[tuple[str, ...]] = ("shard",)
    adds: ClassVar[bool] = True
    stage: ClassVar[int]
    offload: ClassVar[bool] = False

    def configure(self, options: Options) -> None:
        self._double = options.precision == "fp64"
        kind = get_accelerator().device_name()
        if kind != self.world.device.type:
            raise ParallelError(
                f"DeepSpeed found the accelerator {kind!r}, and the ranks are to be on {self.world.device.type}: "
                f"set DS_ACCELERATOR={self.world.device.type}"
            )
        self._own = engines_own(options.engine_config, settled(self.stage, self.offload, self._double))
        self._bound: list[_Bound] = []
        with _quiet(), _no_compiler(), as_launched(self.world):
            comm.init_distributed(dist.get_backend(), dist_init_required=None)

    def bind(self, nets: Sequence[Net]) -> None:
        for net in nets:
            if net.state is not None:
                raise STEPPED_TWICE.error(net.name)
        trainable = {id(p): p for net in nets for p in net.module.parameters() if p.requires_grad}
        if not trainable:
            return
        carrier = _Carrier(list(trainable.values()))
        precision = _in_double() if self._double else nullcontext()
        with _quiet(), as_launched(self.world), precision:
            engine, *_ = deepspeed.initialize(
                model=nn.ModuleList(net.module for net in nets),
                optimizer=carrier,
                config=self._config(sum(p.numel() for p in trainable.values())),
                dist_init_required=False,
            )
        engine.optimizer._coalesce_grad_reduction = True
        self.skip_norm(engine.optimizer)
        bound = _Bound(engine, carrier, list(nets))
        self._bound.append(bound)
        for net in nets:
            net.state = bound
            self.cut(net)

    @abstractmethod
    def cut(self, net: Net) -> None:
        """Says of each parameter which numbers of it DeepSpeed has given this rank."""

    def make_optimizer(
        self, cls: type[torch.optim.Optimizer], groups: list[dict[str, Any]], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        bound = self._bound[-1]
        bound.carrier.optim = cls(groups, **options)
        return _Stepping(bound)  # type: ignore[return-value]

    def grad_factor(self) -> float:
        return float(self.world.data_size)

    def collect(self, nets: Sequence[Net]) -> None:
        bound: _Bound = nets[0].state
        with_grad = {
            (id(net), name) for net in nets for name, p in net.module.named_parameters() if p.grad is not None
        }
        bound.due = bool(with_grad)
        if not bound.due:
            return
        zero = bound.engine.optimizer
        zero.refresh_fp32_params()  # the weights may have been loaded, or written to, since the last step
        self.begin_sum(zero)
        with bound.engine.coalesce_grad_reduction():
            pass  # on leaving it, what lies with the parameters is summed
        zero._coalesce_grad_reduction = True
        for net in nets:
            for name, parameter in net.module.named_parameters():
                if (id(net), name) in with_grad:
                    net.stepped[name].grad = self.summed(zero, parameter, net.stepped[name])

    @abstractmethod
    def skip_norm(self, zero: Any) -> None:
        """Keeps DeepSpeed from taking a norm: the contract's is taken already, and it would leave a step out by its own."""

    @abstractmethod
    def begin_sum(self, zero: Any) -> None:
        """Lets the coming sums replace those of a step that was left out."""

    @abstractmethod
    def summed(self, zero: Any, parameter: nn.Parameter, flat: Flat) -> Tensor:
        """This rank's numbers of a parameter's summed gradient, in DeepSpeed's memory."""

    def close(self) -> None:
        for bound in self._bound:
            bound.engine.destroy()
        self._bound.clear()
        parameter_offload.FWD_MODULE_STACK.clear()
        process_groups._release_process_group_references()
        comm.comm.cdb = None  # the next run has a process group of its own

    def _config(self, numbers: int) -> dict[str, Any]:
        """What the file says, and what the contract does."""
        own = dict(self._own)
        zero: dict[str, Any] = {
            "reduce_bucket_size": max(min(numbers, 500_000_000), 1),  # it allocates as much
            "stage3_param_persistence_threshold": 0,  # else small parameters stay whole
            **own.pop("zero_optimization", {}),
            "stage": self.stage,
        }
        if self._double:
            zero["reduce_scatter"] = False  # which it has for other types only; an all-reduce sums the same
        if self.offload:
            for what in ("offload_optimizer", "offload_param")[: 2 if self.stage == 3 else 1]:
                zero[what] = {**zero.get(what, {}), "device": "cpu"}
        return {
            **own,
            "train_micro_batch_size_per_gpu": 1,  # a number that it wants, and nothing follows from
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0,  # its default is 1
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": zero,
        }


class DeepSpeedZeRO1(_DeepSpeed):
    """Optimizer states and copies of the weights are cut."""

    stage: ClassVar[int] = 1

    def cut(self, net: Net) -> None:
        master = net.state.engine.optimizer.single_partition_of_fp32_groups[0].detach()
        for name, parameter in net.module.named_parameters():
            if not parameter.requires_grad:
                continue
            start, piece = 0, master[:0]
            if (mapping := parameter._hp_mapping) is not None:  # type: ignore[attr-defined]
                start = mapping.lp_fragment_address.start
                piece = mapping.hp_fragment.detach()
            net.stepped[name] = Flat(piece, tuple(parameter.shape), start, self.world.data)

    def skip_norm(self, zero: Any) -> None:
        zero.scaled_global_norm = lambda: torch.zeros((), device=self.world.device)

    def begin_sum(self, zero: Any) -> None:
        zero.micro_step_id = -1

    def summed(self, zero: Any, parameter: nn.Parameter, flat: Flat) -> Tensor:
        if self.offload:
            grads = zero.single_partition_of_fp32_groups[0].grad
        else:
            parts = zero.averaged_gradients[0]
            if len(parts) > 1:
                parts = zero.averaged_gradients[0] = [zero.flatten(parts)]
            grads = parts[0].view(-1)
        mapping = parameter._hp_mapping  # type: ignore[attr-defined]
        if mapping is None:
            return grads[:0]
        address = mapping.hp_fragment_address
        return grads[address.start : address.start + address.numel]


class DeepSpeedZeRO2(DeepSpeedZeRO1):
    """Gradients too, once they are summed."""

    stage: ClassVar[int] = 2


class DeepSpeedZeRO3(_DeepSpeed):
    """Parameters too: a module's are gathered for its forward, and again for its backward."""

    stage: ClassVar[int] = 3

    def bind(self, nets: Sequence[Net]) -> None:
        super().bind(nets)
        for net in nets:
            if net.state is not None:
                _gather_first(net.module)
                _gather_in_methods(net.module)

    def cut(self, net: Net) -> None:
        zero = net.state.engine.optimizer
        rank = self.world.data_rank
        for name, parameter in net.module.named_parameters(remove_duplicate=False):
            whole: Any = parameter
            width = whole.partition_numel()
            start = min(rank * width, whole.ds_numel)
            count = min(width, whole.ds_numel - start)
            shape = tuple(whole.ds_shape)
            net.held[name] = Flat(whole.ds_tensor.detach().view(-1)[:count], shape, start, self.world.data)
            if parameter.requires_grad:
                group, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
                master = zero.fp32_partitioned_groups_flat[group].detach()
                net.stepped[name] = Flat(master[offset : offset + count], shape, start, self.world.data)

    def skip_norm(self, zero: Any) -> None:
        zero._get_norm_groups = lambda: [torch.zeros((), device=self.world.device)]

    def begin_sum(self, zero: Any) -> None:
        zero.micro_step_id = 0

    def summed(self, zero: Any, parameter: nn.Parameter, flat: Flat) -> Tensor:
        group, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
        if self.offload:
            grads = zero.fp32_partitioned_groups_flat[group].grad[offset:]
        else:
            place = next(i for i, p in enumerate(zero.fp16_groups[group]) if p is parameter)
            grads = zero.averaged_gradients[group][place].view(-1)
        return grads[: flat.tensor.numel()]

    def after_backward(self, nets: Sequence[Net], last: bool) -> None:
        for bound in self._bound:  # also those that the loss only ran through
            bound.engine.optimizer.parameter_offload.release_backward_leftovers()

    def settle(self, net: Net) -> None:
        if net.state is not None:
            net.state.engine.optimizer.parameter_offload.partition_all_parameters()


class DeepSpeedZeRO1Offload(DeepSpeedZeRO1):
    """Stage 1 with what is stepped in host memory."""

    offload: ClassVar[bool] = True


class DeepSpeedZeRO2Offload(DeepSpeedZeRO2):
    """Stage 2 with what is stepped in host memory."""

    offload: ClassVar[bool] = True


class DeepSpeedZeRO3Offload(DeepSpeedZeRO3):
    """Stage 3 with all pieces in host memory."""

    offload: ClassVar[bool] = True


class _Carrier(torch.optim.Optimizer):
    """What DeepSpeed steps, once for each flat tensor that it has made; the first call steps all their pieces."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.0})
        self.optim: torch.optim.Optimizer | None = None
        self.due = False

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.due:
            assert self.optim is not None
            self.optim.step()
            self.due = False


@dataclass(eq=False)
class _Bound:
    """A DeepSpeed engine and the nets that it steps.

    Attributes:
        due: there are gradients to step by.
    """

    engine: Any
    carrier: _Carrier
    nets: list[Net]
    due: bool = False


class _Stepping:
    """The optimizer over the pieces, whose step DeepSpeed carries out and hands on to the weights of all ranks."""

    def __init__(self, bound: _Bound) -> None:
        assert bound.carrier.optim is not None
        self._bound = bound
        self.optim = bound.carrier.optim

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.optim.param_groups

    def step(self) -> None:
        if self._bound.due:
            self._bound.carrier.due = True
            self._bound.engine.step()
            assert not self._bound.carrier.due, "DeepSpeed left the step out"


def _gather_first(module: nn.Module) -> None:
    """Lets hooks that work on parameters (spectral norm's) find them whole, and run backward before they are freed."""
    for part in module.modules():
        hooks = part._forward_pre_hooks
        own = [key for key, hook in hooks.items() if (hook.__module__ or "").startswith("deepspeed.")]
        for key in [key for key in hooks if key not in own]:
            hooks[key] = hooks.pop(key)  # to the end


def _gather_in_methods(module: nn.Module) -> None:
    """Makes public methods gather the module's own parameters, as forward does; both gather those of others they use."""
    plain_forward = module.forward
    waiting: list[Callable[..., Any]] = []
    inside = False

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        method = waiting.pop() if waiting else plain_forward
        outermost, inside = not inside, True
        if outermost:
            _notice_strangers(module, True)
        try:
            return method(*args, **kwargs)
        finally:
            if outermost:
                inside = False
                _notice_strangers(module, False)

    def entering(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if inside:
                return plain(*args, **kwargs)
            waiting.append(plain)
            try:
                return module(*args, **kwargs)
            finally:
                waiting.clear()

        return call

    for name in own_methods(module):
        setattr(module, name, entering(getattr(module, name)))
    module.forward = forward


def _notice_strangers(module: nn.Module, yes: bool) -> None:
    """Whether a parameter that a module takes from another one is gathered when it is asked for."""
    for part in module.modules():
        parameters: Any = part._parameters  # of DeepSpeed's class
        parameters._in_forward = yes


@contextmanager
def _quiet() -> Iterator[None]:
    """Its log goes to stdout unless told otherwise; errors are left to be seen, on stderr."""
    log = logging.getLogger("DeepSpeed")
    for handler in log.handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    log.setLevel(logging.ERROR)
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def _in_double() -> Iterator[None]:
    """Within it engines are made that hold, sum and step fp64, as their parameters are.

    DeepSpeed has one place for each of the types it works in, and no key of its configuration that names fp64.
    """

    def masters(zero: ZeROOptimizer, **options: Any) -> torch.dtype:
        asked = configure(zero, **options)
        assert asked is torch.float32, f"DeepSpeed was told to keep {asked}"
        return torch.float64

    configure = ZeROOptimizer._configure_master_weights
    replaced: tuple[tuple[Any, str, Any], ...] = (
        (ZeROOptimizer, "_configure_master_weights", masters),
        (DeepSpeedEngine, "communication_data_type", property(lambda engine: torch.float64)),
        (DeepSpeedEngine, "get_data_types", lambda engine: (torch.float64, torch.float64)),
    )
    known = [vars(owner)[name] for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for (owner, name, _), value in zip(replaced, known, strict=True):
            setattr(owner, name, value)


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Within it no operator of its own can be built: gloo does what its shared-memory helper would.

    The helper takes a compiler and two minutes, and outlives the process group that it was made for.
    """
    names = vars(deepspeed.ops)
    known = names.pop("__compatible_ops__", None)
    names["__compatible_ops__"] = {}
    try:
        yield
    finally:
        del names["__compatible_ops__"]
        if known is not None:
            names["__compatible_ops__"] = known
