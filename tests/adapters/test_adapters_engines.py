"""What is special to Accelerate and Fabric; that they keep the contract is in tests/contract, whose cells they are."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import pytest
import torch
from pool import CaseError, Pool
from torch import Tensor

from parallel import registry
from parallel.adapters.config import EngineConfig
from parallel.errors import ParallelError
from parallel.interface import Parallel
from parallel.launcher import Options
from parallel.mesh import lay_out
from parallel.refusals import ACCELERATE_FSDP_ON_CPU
from parallel.strategy import Strategy
from parallel.testing import Trace, differences, nets, run_case

if registry.ACCELERATE.missing() or registry.FABRIC.missing():
    pytest.skip("Accelerate or Fabric is not installed: make test-adapters", allow_module_level=True)

SPECS = ("accelerate-ddp", "fabric-ddp", "fabric-fsdp")


def _calls(p: Parallel) -> dict[str, int]:
    """How often the engine's own methods are called in a step of two parts, and what its optimizer is."""
    if p.spec.startswith("accelerate"):
        from accelerate import Accelerator as Engine

        prepared, optimizer = "prepare_model", "prepare_optimizer"
    else:
        from lightning_fabric import Fabric as Engine

        prepared, optimizer = "setup_module", "setup_optimizers"
    counted = {"place": 0, "optimizer": 0, "backward": 0}
    with mock.patch.multiple(
        Engine,
        **{
            method: _counting(getattr(Engine, method), counted, name)
            for name, method in (("place", prepared), ("optimizer", optimizer), ("backward", "backward"))
        },
    ):
        net = p.wrap(nets.MLP(), nets.MLP_PLAN)
        opt = p.optimizer(net, torch.optim.AdamW, lr=0.1)
        stepped = {"step": 0}
        own = type(opt.torch)
        with mock.patch.object(own, "step", _counting(own.step, stepped, "step")):
            for batch in p.loader(torch.ones(8, 6), 8):
                for part in p.parts(batch):
                    p.backward(net(part.data).sum() / batch.size, opt)
                p.step(opt)
    return counted | stepped


def _counting(method: Any, counted: dict[str, int], name: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        counted[name] += 1
        return method(*args, **kwargs)

    return call


@pytest.mark.parametrize("spec", SPECS)
def test_the_engine_does_the_work(spec: str, ranks: Pool) -> None:
    for found in ranks.run(_calls, spec, 2, accumulate=2):
        assert found == {"place": 1, "optimizer": 1, "backward": 2, "step": 1}


def _state(p: Parallel) -> tuple[dict[str, str], int, torch.dtype]:
    return dict(os.environ), torch.get_num_threads(), torch.get_default_dtype()


def _left(p: Parallel) -> list[str]:
    from accelerate.state import AcceleratorState, GradientState, PartialState

    states = (AcceleratorState, GradientState, PartialState)
    return [state.__name__ for state in states if state._shared_state]


@pytest.mark.parametrize("spec", [*SPECS, "accelerate-fsdp"])
def test_nothing_stays_behind(spec: str, ranks: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the environment (the threads' number included) nor in Accelerate's singletons; after a refusal too."""
    ranks.run(_left, "ddp", 2)  # modules that are imported for the first time may set what they like
    before = ranks.run(_state, "ddp", 2)
    if spec == "accelerate-fsdp":
        with pytest.raises(CaseError):
            ranks.run(run_case, spec, 2, "mlp", 1)
    else:
        assert ranks.run(_state, spec, 2, precision="fp64") == before  # while it lives
        ranks.run(run_case, spec, 2, "mlp", 1, precision="fp64")
    assert ranks.run(_state, "ddp", 2) == before
    assert ranks.run(_left, "ddp", 2) == [[], []]


def _stray(p: Parallel, spec: str) -> Trace:
    """A strategy where ``accelerate launch`` and ``fabric run`` left their wishes."""
    wishes = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_USE_FSDP": "true",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "LT_CLI_USED": "1",
        "LT_DEVICES": "7",
        "LT_PRECISION": "bf16-mixed",
    }
    with mock.patch.dict(os.environ, wishes):
        engine = registry.resolve(spec)[0].load()
        world = lay_out(engine.axes, p.rank, p.world_size, p.local_rank, p.device, {})
        made = engine(world)
        made.configure(Options(precision="fp64"))
        trace = run_case(Strategy(spec, [made], world, precision="fp64"), "mlp", 3)
        made.close()
    return trace


@pytest.mark.parametrize("spec", SPECS)
def test_stray_variables_of_the_engines_launchers_change_nothing(spec: str, ranks: Pool) -> None:
    want = ranks.run(run_case, "single", 1, "mlp", 3, precision="fp64")[0]
    assert not differences(want, ranks.run(_stray, "ddp", 2, spec, precision="fp64")[0], "fp64")


def _second(p: Parallel) -> str:
    engine = registry.resolve("accelerate-ddp")[0].load()
    try:
        engine(p.world).configure(Options())  # type: ignore[attr-defined]
    except ParallelError as error:
        return str(error)
    return ""


def test_an_accelerator_that_is_there_already_is_left_alone(ranks: Pool) -> None:
    said = "this process has an Accelerator already; a strategy makes its own"
    assert ranks.run(_second, "accelerate-ddp", 2) == [said, said]


def _refused(p: Parallel, spec: str, options: Options) -> str:
    engine = registry.resolve(spec)[0].load()
    world = lay_out(engine.axes, p.rank, p.world_size, p.local_rank, p.device, {})
    made = engine(world)
    try:
        made.configure(options)
    except ParallelError as error:
        return str(error)
    made.close()
    return ""


def test_accelerate_fsdp_on_a_cpu_is_refused_by_what_accelerate_set_up(ranks: Pool) -> None:
    said = str(ACCELERATE_FSDP_ON_CPU.error("Accelerate set up MULTI_CPU on 2"))
    assert said.endswith("take fsdp, which shards on a CPU too") and "\n" not in said
    assert ranks.run(_refused, "ddp", 2, "accelerate-fsdp", Options()) == [said, said]


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"mixed_precision": "bf16"}, {}, 'mixed_precision is "bf16", which --precision settles'),
        (
            {"mixed_precision": "no"},
            {"precision": "bf16-mixed"},
            'mixed_precision is "no", which --precision settles',
        ),
        (
            {"gradient_accumulation_steps": 3},
            {"accumulate": 2},
            "gradient_accumulation_steps is 3, which --accumulate",
        ),
        ({"gradient_clipping": 1.0}, {}, "gradient_clipping is 1.0, which p.optimizer's clip_norm settles"),
        ({"num_processes": 8}, {}, "num_processes is 8, which --nproc settles"),
        ({"distributed_type": "FSDP"}, {}, 'distributed_type is "FSDP", which --parallel settles'),
        ({"use_cpu": False}, {}, "use_cpu is false, which the device settles"),
        (
            {"deepspeed_config": {"zero_stage": 2}},
            {},
            'deepspeed_config is {"zero_stage": 2}, which --parallel settles',
        ),
        ({"dynamo_config": {"dynamo_backend": "INDUCTOR"}}, {}, "dynamo_config is "),
        ({"fsdp_config": {"fsdp_version": 1}}, {}, "fsdp_config.fsdp_version is 1, which --parallel settles"),
        ({"wings": 2}, {}, "wings is not handed on: leave it out (handed on: debug, enable_cpu_affinity)"),
    ],
)
def test_a_setting_of_accelerates_that_contradicts_is_named(
    settings: dict[str, Any], options: dict[str, Any], said: str, ranks: Pool
) -> None:
    config = Options(engine_config=EngineConfig("mine.yaml", settings), **options)
    for found in ranks.run(_refused, "ddp", 2, "accelerate-ddp", config):
        assert found.startswith(f"--engine-config mine.yaml: {said}") and "\n" not in found


def _debugging(p: Parallel) -> bool:
    from accelerate.state import PartialState

    return PartialState().debug


def test_what_accelerate_config_writes_is_taken_and_handed_on(ranks: Pool) -> None:
    """The answers of ``accelerate config`` for two processes on a CPU."""
    written = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": True,
        "distributed_type": "MULTI_CPU",
        "downcast_bf16": "no",
        "enable_cpu_affinity": False,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "no",
        "num_machines": 1,
        "num_processes": 2,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": True,
    }
    config = EngineConfig("mine.yaml", written)
    assert ranks.run(_debugging, "accelerate-ddp", 2, engine_config=config) == [True, True]
    assert ranks.run(_debugging, "accelerate-ddp", 2) == [False, False]


def _as_on_a_gpu(p: Parallel, case: str, parts: int) -> Trace:
    """Accelerate's FSDP2 with its own preparation, on a CPU that it is made to take for more."""
    from accelerate.state import AcceleratorState, DistributedType

    real = AcceleratorState.__init__

    def pretend(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        real(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.fsdp_plugin = fsdp_plugin
        if "fsdp_plugin" in self.__dict__:
            self.distributed_type = DistributedType.FSDP

    engine = registry.resolve("accelerate-fsdp")[0].load()
    world = lay_out(engine.axes, p.rank, p.world_size, p.local_rank, p.device, {})
    with mock.patch.object(AcceleratorState, "__init__", pretend):
        made = engine(world)
        try:
            made.configure(Options(precision="fp64", accumulate=parts))
            q = Strategy("accelerate-fsdp", [made], world, precision="fp64", accumulate=parts)
            return _from_factories(q) if case == "factories" else run_case(q, case)
        finally:
            made.close()


def _from_factories(p: Parallel) -> Trace:
    """Nets that are never whole on a rank: their weights before and after a step."""
    torch.manual_seed(p.rank)
    net = p.wrap(nets.MLP, nets.MLP_PLAN)
    start: dict[str, Tensor] = {f"start.{name}": value for name, value in p.state_dict(net).items()}
    opt = p.optimizer(net, torch.optim.SGD, lr=0.1)
    for batch in p.loader(torch.ones(9, 6), 9):
        for part in p.parts(batch):
            p.backward(net(part.data).sum() / batch.size, opt)
        p.step(opt)
    return Trace(weights=start | p.state_dict(net))


@pytest.mark.parametrize("case", ["mlp", "gan", "forwards", "tied", "attention", "factories"])
def test_accelerates_fsdp2_carries_several_models(case: str, ranks: Pool) -> None:
    if case == "factories":
        want = ranks.run(_from_factories, "single", 1, precision="fp64")[0]
    else:
        want = ranks.run(run_case, "single", 1, case, precision="fp64")[0]
    for n, parts in ((2, 1), (3, 2)):
        got = ranks.run(_as_on_a_gpu, "ddp", n, case, parts)[0]
        assert not differences(want, got, "fp64")
