"""How the denoising network may be cut over ranks."""

from __future__ import annotations

from parallel.plan import Plan

# The wide layers in the middle hold nearly all weights: the second is split by output, the third by input.
PLAN = Plan(
    units=("fc2", "fc3"),
    tensor={"fc2": "column", "fc3": "row"},
    compile=("fc2", "fc3"),
)
