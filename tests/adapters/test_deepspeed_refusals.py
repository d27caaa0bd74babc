"""What DeepSpeed cannot do is refused with the fact behind it; its configuration, its environment, its log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pool import Pool

from parallel import refusals
from parallel.adapters import config
from parallel.adapters.config import EngineConfig, engines_own
from parallel.errors import ParallelError

pytest.importorskip("deepspeed", reason='DeepSpeed is not installed: pip install "parallel-zoo[deepspeed]"')

import deepspeed_jobs as jobs


@pytest.mark.parametrize(
    ("what", "refusal"),
    [("optimizer", refusals.WHOLE_TENSOR_OPTIMIZER), ("twice", refusals.STEPPED_TWICE)],
)
@pytest.mark.parametrize("stage", [1, 3])
def test_refuses_with_the_fact_behind_it(
    ranks: Pool, what: str, refusal: refusals.Refusal, stage: int
) -> None:
    for said in ranks.run(jobs.refused, f"deepspeed-zero{stage}", 2, what):
        assert f"{refusal.what} is refused: {refusal.because}; {refusal.instead}" in said
        assert "\n" not in said


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"train_batch_size": 32}, "train_batch_size is 32"),
        ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu is 4"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps is 2"),
        ({"gradient_clipping": 1.0}, "gradient_clipping is 1.0"),
        ({"optimizer": {"type": "Adam"}}, 'optimizer is {"type": "Adam"}'),
        ({"scheduler": {"type": "WarmupLR"}}, 'scheduler is {"type": "WarmupLR"}'),
        ({"zero_optimization": {"stage": 2}}, "zero_optimization.stage is 2"),
        ({"fp16": {"enabled": True}}, "fp16.enabled is true"),
        ({"bf16": {"enabled": True}}, "bf16.enabled is true"),
        ({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}}, "zero_optimization.offload_optimizer.device"),
    ],
)  # fmt: skip
def test_a_setting_that_contradicts_the_contract_is_named(settings: dict[str, object], key: str) -> None:
    from parallel.adapters.deepspeed import settled

    with pytest.raises(ParallelError) as caught:
        engines_own(EngineConfig("ds.json", settings), settled(3, offload=False, double=False))
    assert str(caught.value).startswith(f"--engine-config ds.json: {key}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"communication_data_type": "fp32"}, 'communication_data_type is "fp32"'),
        ({"zero_optimization": {"reduce_scatter": True}}, "zero_optimization.reduce_scatter is true"),
    ],
)
def test_under_fp64_nothing_is_sent_in_another_type(settings: dict[str, object], key: str) -> None:
    from parallel.adapters.deepspeed import settled

    file = EngineConfig("ds.json", settings)
    with pytest.raises(ParallelError, match=f"^--engine-config ds.json: {key}"):
        engines_own(file, settled(2, offload=False, double=True))
    engines_own(file, settled(2, offload=False, double=False))


def test_a_setting_that_says_the_same_as_the_contract_is_fine() -> None:
    from parallel.adapters.deepspeed import settled

    same = {
        "train_batch_size": "auto",
        "gradient_clipping": 0,
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "overlap_comm": False},
    }
    assert engines_own(EngineConfig("ds.json", same), settled(3, offload=True, double=False))[
        "zero_optimization"
    ] == {
        "offload_optimizer": {},
        "overlap_comm": False,
    }


def test_a_file_is_handed_through(ranks: Pool, tmp_path: Path) -> None:
    """Here to let DeepSpeed step in several turns what the contract steps at once."""
    file = tmp_path / "ds.json"
    file.write_text(json.dumps({"zero_optimization": {"sub_group_size": 600, "overlap_comm": False}}))
    want = ranks.run(jobs.not_frozen, "single", 1)[0]
    got = ranks.run(jobs.not_frozen, "deepspeed-zero3", 2, engine_config=config.read(file, "json"))[0]
    assert got == pytest.approx(want, rel=1e-5)


def test_the_environment_is_left_as_it_was(ranks: Pool) -> None:
    assert ranks.run(jobs.environment, "deepspeed-zero1", 2) == [[], []]


def test_its_warnings_stay_out_of_the_way(ranks: Pool, capfd: pytest.CaptureFixture[str]) -> None:
    ranks.run(jobs.nothing, "deepspeed-zero3", 2)
    shown = capfd.readouterr()
    assert shown.out == "" and "DeepSpeed" not in shown.err
