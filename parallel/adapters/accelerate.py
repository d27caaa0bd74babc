"""Accelerate: it sets modules and optimizers up, runs backward and steps; the contract is DDP's and FSDP's here.

Accelerate keeps what it found in global singletons, and its wishes in environment variables: both are put back, and what it
really set up is looked at, since what it cannot do on a device it leaves out without a word. Its precision is "no", which
leaves modules as they are given: under mixed precision it changes their ``forward``, and has one loss scaler for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, DistributedType, GradientState, PartialState
from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from parallel.adapters.config import EngineConfig, Settled, engines_own
from parallel.adapters.environment import as_launched
from parallel.ddp import DDP
from parallel.engine import Engine
from parallel.errors import ParallelError
from parallel.fsdp import FSDP
from parallel.launcher import Options
from parallel.mesh import World
from parallel.net import Net
from parallel.refusals import ACCELERATE_FSDP_ON_CPU

# Keys of Accelerate's file that are its own, by the variable through which it reads them.
_HANDED = {"debug": "ACCELERATE_DEBUG_MODE", "enable_cpu_affinity": "ACCELERATE_CPU_AFFINITY"}
_HANDED_FSDP = {"fsdp_reshard_after_forward": "FSDP_RESHARD_AFTER_FORWARD"}


class _Accelerated(Engine):
    """What an Accelerator does whatever it has set up."""

    _accelerator: Accelerator

    def backward(self, nets: Sequence[Net], loss: Tensor, seed: Tensor) -> None:
        self._accelerator.backward(loss, gradient=seed)

    def make_optimizer(
        self, cls: type[torch.optim.Optimizer], groups: list[dict[str, Any]], options: dict[str, Any]
    ) -> torch.optim.Optimizer:
        return self._accelerator.prepare_optimizer(cls(groups, **options))

    def close(self) -> None:
        _forget()


class AccelerateDDP(_Accelerated, DDP):
    """What Accelerate makes of several processes without a plugin."""

    def configure(self, options: Options) -> None:
        kind = DistributedType.MULTI_GPU if self.world.device.type == "cuda" else DistributedType.MULTI_CPU
        own = _own_settings(options, self.world, kind)
        self._accelerator = _accelerator(self.world, _variables(options.engine_config, own, _HANDED))
        if said := _other_than(kind, self.world, self._accelerator):
            raise ParallelError(
                f"Accelerate set up {said} and not {kind.value} on {self.world.size}: take ddp"
            )

    def replicate(self, module: nn.Module, find_unused: bool) -> DistributedDataParallel:
        if self.world.size == 1:
            return super().replicate(module, find_unused)  # Accelerate leaves a module bare where it is alone
        self._accelerator.ddp_handler = DistributedDataParallelKwargs(
            find_unused_parameters=find_unused, gradient_as_bucket_view=True
        )
        ddp = self._accelerator.prepare_model(module)
        assert isinstance(ddp, DistributedDataParallel)
        return ddp


class AccelerateFSDP(_Accelerated, FSDP):
    """Accelerate's FSDP2. Its ``prepare`` takes one model, and is called for each; the plan's units are cut before."""

    def configure(self, options: Options) -> None:
        own = _own_settings(options, self.world, DistributedType.FSDP)
        config = options.engine_config
        variables = _variables(config, own.pop("fsdp_config", {}), _HANDED_FSDP, "fsdp_config.")
        variables |= _variables(config, own, _HANDED)
        self._accelerator = _accelerator(self.world, variables | {"FSDP_VERSION": "2"}, sharded=True)
        if said := _other_than(DistributedType.FSDP, self.world, self._accelerator):
            raise ACCELERATE_FSDP_ON_CPU.error(f"Accelerate set up {said}")

    def shard_root(self, module: nn.Module, options: dict[str, Any]) -> None:
        # It wants an optimizer, to give it the pieces in place of the parameters; ours is made of the pieces.
        self._accelerator.prepare(module, torch.optim.SGD(module.parameters(), lr=0.0))


def _accelerator(world: World, variables: Mapping[str, str], sharded: bool = False) -> Accelerator:
    """An Accelerator on the ranks as they are."""
    if PartialState._shared_state or AcceleratorState._shared_state:
        raise ParallelError("this process has an Accelerator already; a strategy makes its own")
    with as_launched(world, variables, hidden=("ACCELERATE_", "FSDP_", "FORK_LAUNCHED")):
        try:
            return Accelerator(
                cpu=world.device.type == "cpu",
                mixed_precision="no",
                fsdp_plugin=FullyShardedDataParallelPlugin(cpu_ram_efficient_loading=False)
                if sharded
                else None,
            )
        except BaseException:
            _forget()
            raise


def _forget() -> None:
    """Empties Accelerate's singletons."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def _other_than(kind: DistributedType, world: World, accelerator: Accelerator) -> str:
    """What Accelerate set up where that is not what was asked for, as of now forgotten; else nothing."""
    found, size = accelerator.distributed_type, accelerator.num_processes
    if (found, size) == (kind, world.size):
        return ""
    _forget()
    return f"{found.value} on {size}"


def _own_settings(options: Options, world: World, kind: DistributedType) -> dict[str, Any]:
    """What is left of the user's file for Accelerate."""
    precision = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}.get(options.precision, "no")
    plan, launcher = "the model's Plan", "what starts the ranks"
    return engines_own(
        options.engine_config,
        (
            Settled("mixed_precision", "--precision", allowed=(precision, None)),
            Settled("gradient_accumulation_steps", "--accumulate", allowed=(1, options.accumulate)),
            Settled("gradient_clipping", "p.optimizer's clip_norm"),
            Settled("dynamo_config", "--compile", allowed=({},)),
            Settled("distributed_type", "--parallel", allowed=(kind.value,)),
            Settled("num_processes", "--nproc", allowed=(world.size,)),
            Settled("use_cpu", "the device", allowed=(world.device.type == "cpu",)),
            *(
                Settled(f"{name}_config", "--parallel", allowed=({},))
                for name in ("deepspeed", "megatron_lm", "fp8", "parallelism")
            ),
            *(Settled(name, launcher) for name in ("main_process_ip", "main_process_port", "gpu_ids")),
            Settled("num_machines", launcher, allowed=(1,)),
            Settled("machine_rank", launcher, allowed=(0,)),
            Settled("rdzv_backend", launcher, allowed=("static", "c10d")),
            Settled("same_network", launcher, allowed=(True,)),
            Settled("compute_environment", launcher, allowed=("LOCAL_MACHINE",)),
            Settled("main_training_function", launcher, allowed=("main",)),
            Settled("downcast_bf16", "--precision", allowed=("no", False)),
            Settled("fsdp_config.fsdp_version", "--parallel", allowed=(2,)),
            Settled("fsdp_config.fsdp_auto_wrap_policy", plan, allowed=("NO_WRAP",)),
            Settled("fsdp_config.fsdp_transformer_layer_cls_to_wrap", plan),
            Settled("fsdp_config.fsdp_min_num_params", plan),
            Settled("fsdp_config.fsdp_activation_checkpointing", plan, allowed=(False,)),
            Settled("fsdp_config.fsdp_offload_params", "--parallel", allowed=(False,)),
            Settled("fsdp_config.fsdp_cpu_ram_efficient_loading", "p.wrap", allowed=(False,)),
            Settled("fsdp_config.fsdp_state_dict_type", "p.save"),
        ),
    )


def _variables(
    config: EngineConfig | None, own: Mapping[str, Any], handed: Mapping[str, str], above: str = ""
) -> dict[str, str]:
    """Accelerate's own settings as the variables through which it reads them.

    Raises:
        ParallelError: a setting that is none of these; names it.
    """
    for key in own:
        if key not in handed:
            assert config is not None
            raise config.error(
                above + key, f"is not handed on: leave it out (handed on: {_listed(handed, above)})"
            )
    return {handed[key]: str(value).lower() for key, value in own.items()}


def _listed(keys: Iterable[str], above: str) -> str:
    return ", ".join(above + key for key in keys)
