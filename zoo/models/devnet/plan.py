"""How DevNet may be cut over ranks."""

from __future__ import annotations

from parallel.plan import Plan
from zoo.models.devnet.model import HIDDEN_UNITS


def plan_of(depth: int) -> Plan:
    """Each hidden layer is a unit to gather and to compile; layers are split in turn by output and by input.

    The linear network has no hidden layer: nothing of it can be split.
    """
    layers = [*(f"hidden.{number}" for number in range(len(HIDDEN_UNITS[depth]))), "score"]
    if len(layers) == 1:
        return Plan()
    tensor = {layer: ("column", "row")[number % 2] for number, layer in enumerate(layers)}
    return Plan(units=("hidden.*",), compile=("hidden.*",), tensor=tensor)
