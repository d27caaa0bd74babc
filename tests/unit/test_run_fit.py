"""The loop: what it calls, how often, and that its numbers are those of a loop written by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from parallel import Parallel, launch
from zoo.recorder import Record, Recorder
from zoo.trainer import Evaluation, Fitted, evaluating, fit

if TYPE_CHECKING:
    from toy_trainer import ToyTrainer

TOY_PACKAGE = Path(__file__).parents[1] / "toy_package"


@pytest.fixture(autouse=True)
def toy_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY_PACKAGE))


class Heard(Recorder):
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.ticks: list[int] = []
        self.calls: list[str] = []
        self.records: list[Record] = []
        self.evaluations: list[Record] = []

    def begin(self, steps: int, steps_per_epoch: int, done: int = 0, evaluation_due: bool = False) -> None:
        self.begun.append((steps, steps_per_epoch))

    def tick(self, step: int) -> None:
        self.ticks.append(step)

    def steps(self, records: Sequence[Record]) -> None:
        self.calls.append(f"{records[0].step}-{records[-1].step}")
        self.records += records

    def evaluation(self, record: Record) -> None:
        self.calls.append(f"evaluation {record.step}")
        self.evaluations.append(record)


def trained(
    change: Callable[[ToyTrainer], object] = lambda trainer: None, **options: Any
) -> tuple[ToyTrainer, Heard, Fitted]:
    """Fits the toy in this process, in memory."""
    from toy_config import ToyConfig
    from toy_trainer import ToyTrainer

    def main(p: Parallel) -> tuple[ToyTrainer, Heard, Fitted]:
        trainer, heard = ToyTrainer(p, ToyConfig(precision="fp64", **options)), Heard()
        change(trainer)
        return trainer, heard, fit(trainer, heard)

    return launch(main, "single", precision="fp64")


def test_losses_and_weights_are_those_of_a_loop_by_hand() -> None:
    trainer, heard, _ = trained(epochs=2, seed=3, lr=0.2)
    torch.manual_seed(3)
    line = torch.nn.Linear(1, 1).double()
    x = torch.linspace(-1, 1, 13, dtype=torch.float64).unsqueeze(-1)
    losses, norms = [], []
    for epoch in range(2):
        order = trainer.train.order(epoch)
        for rows in order.split(4):
            loss = (line(x[rows]) - (2 * x[rows] + 1)).square().mean()
            line.zero_grad()
            loss.backward()
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in line.parameters()]).item())
            with torch.no_grad():
                for parameter in line.parameters():
                    parameter -= 0.2 * parameter.grad
            losses.append(loss.item())
    assert [record.values["loss"] for record in heard.records] == pytest.approx(losses, rel=1e-12)
    assert [record.values["grad_norm"] for record in heard.records] == pytest.approx(norms, rel=1e-12)
    assert {record.values["lr"] for record in heard.records} == {0.2}
    weights = trainer.models["net"].state_dict()
    assert torch.allclose(weights["line.weight"], line.weight, rtol=1e-12)
    assert torch.allclose(weights["line.bias"], line.bias, rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"epochs": 3}, [1] * 4 + [2] * 4 + [3] * 4),
        ({"steps": 6}, [1] * 4 + [2] * 2),
        ({"steps": 4}, [1] * 4),
        ({"steps": 1}, [1]),
        ({"epochs": 2, "batch_size": 13}, [1, 2]),
        ({"epochs": 1, "batch_size": 100}, [1]),
    ],
)
def test_the_run_is_as_long_as_asked(options: dict[str, Any], epochs: list[int]) -> None:
    _, heard, fitted = trained(**options)
    assert fitted.steps == len(epochs)
    assert heard.begun[0][0] == len(epochs)
    assert heard.ticks == list(range(1, len(epochs) + 1))
    assert [(record.step, record.epoch) for record in heard.records] == list(enumerate(epochs, start=1))


def test_orders_differ_from_epoch_to_epoch_by_steps_as_by_epochs() -> None:
    """A loop by steps that forgets to count epochs shows the same batches in each."""
    seen: list[list[int]] = []

    def watch(trainer: ToyTrainer) -> None:
        step = trainer.step

        def watched(batch: Any) -> Any:
            seen.append(batch.index.tolist())
            return step(batch)

        trainer.step = watched  # type: ignore[method-assign]

    trained(watch, epochs=3)
    by_epochs, seen = seen, []
    trained(watch, steps=12)
    assert by_epochs == seen
    orders = [list(itertools.chain(*seen[start : start + 4])) for start in (0, 4, 8)]
    assert all(sorted(order) == list(range(13)) for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"epochs": 3}, [12]),
        ({"epochs": 3, "eval_every": 1}, [4, 8, 12]),
        ({"epochs": 5, "eval_every": 2}, [8, 16, 20]),
        ({"steps": 6, "eval_every": 1}, [4, 6]),
        ({"steps": 8, "eval_every": 1}, [4, 8]),
        ({"steps": 3}, [3]),
    ],
)
def test_evaluations_come_when_asked_and_once_at_the_end(options: dict[str, Any], steps: list[int]) -> None:
    _, heard, fitted = trained(**options)
    assert [record.step for record in heard.evaluations] == steps
    assert fitted.evaluation is not None
    assert fitted.evaluation.metrics == heard.evaluations[-1].values


def test_numbers_are_told_in_bulk_and_in_order() -> None:
    """One reduction a log interval, not one a step; and none later than the evaluation that follows the steps."""
    sums: list[int] = []

    def count(trainer: ToyTrainer) -> None:
        total = trainer.p.sum

        def counted(value: torch.Tensor) -> torch.Tensor:
            sums.append(value.numel())
            return total(value)

        trainer.p.sum = counted  # type: ignore[method-assign]

    _, heard, _ = trained(count, epochs=3, eval_every=2, log_every=3)
    assert heard.calls == ["1-3", "4-6", "7-8", "evaluation 8", "9-11", "12-12", "evaluation 12"]
    assert sums == [3, 3, 2, 3, 1]
    _, often, _ = trained(epochs=3, log_every=1)
    assert often.records == heard.records


def test_names_tell_several_optimizers_apart_and_steps_may_differ() -> None:
    def change(trainer: ToyTrainer) -> None:
        step = trainer.step

        def changed(batch: Any) -> Any:
            numbers = step(batch)
            if batch.step == 0:
                return numbers
            loss, info = numbers["loss"], numbers["optimizer"]
            return {"loss": loss, "other": loss * 2, "d": info, "g": info}

        trainer.step = changed  # type: ignore[method-assign]

    _, heard, _ = trained(change, steps=2)
    first, second = (record.values for record in heard.records)
    assert set(first) == {"loss", "grad_norm", "lr"}
    assert set(second) == {"loss", "other", "d_grad_norm", "d_lr", "g_grad_norm", "g_lr"}
    assert second["other"] == 2 * second["loss"]


@pytest.mark.parametrize(("lowest", "step"), [(True, 8), (False, 12)])
def test_the_best_evaluation_is_known(monkeypatch: pytest.MonkeyPatch, lowest: bool, step: int) -> None:
    values = iter([float("nan"), 1.0, 2.0, 1.5])

    def change(trainer: ToyTrainer) -> None:
        monkeypatch.setattr(type(trainer), "best_is_lowest", lowest)
        trainer.evaluate = lambda: Evaluation({"mse": next(values)})  # type: ignore[method-assign]

    _, _, fitted = trained(change, epochs=4, eval_every=1)
    assert fitted.best is not None
    assert fitted.best.step == step


def test_a_model_without_evaluation_trains() -> None:
    def change(trainer: ToyTrainer) -> None:
        trainer.evaluate = lambda: None  # type: ignore[method-assign,assignment,return-value]

    _, heard, fitted = trained(change, epochs=1, eval_every=1)
    assert (fitted.evaluation, fitted.best, heard.evaluations) == (None, None, [])


def test_evaluation_mode_ends_with_each_module_as_it_was() -> None:
    trainer, _, _ = trained(steps=1)
    net = trainer.models["net"]
    net.train()
    net.get_submodule("line").eval()  # frozen, say
    with evaluating(trainer):
        assert not any(module.training for module in net.modules())
        assert not torch.is_grad_enabled()
    assert net.training
    assert not net.get_submodule("line").training
    assert torch.is_grad_enabled()


def test_a_step_that_keeps_its_graph_is_an_error() -> None:
    def change(trainer: ToyTrainer) -> None:
        trainer.step = lambda batch: {"loss": torch.zeros((), requires_grad=True)}  # type: ignore[method-assign]

    with pytest.raises(AssertionError, match="detach"):
        trained(change, steps=1)


def test_training_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trained(epochs=1)
    assert list(tmp_path.iterdir()) == []
