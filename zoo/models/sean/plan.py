"""How SEAN's two networks may be cut over ranks."""

from __future__ import annotations

from parallel.plan import Plan

# A residual block is split as an MLP is: its first convolution by output channel, what follows it by channel, its second
# convolution by input channel.
GENERATOR = Plan(
    units=("Zencoder", "head_0", "G_middle_*", "up_*"),
    tensor={
        "*.conv_0": "conv_out",
        "*.ace_1": "slice noise_var",
        "*.ace_1.param_free_norm": "channels",
        "*.ace_1.Spade.mlp_shared.0": "shared",
        "*.ace_1.Spade.mlp_gamma": "channels",
        "*.ace_1.Spade.mlp_beta": "channels",
        "*.ace_1.fc_mu": "entering",
        "*.ace_1.conv_gamma": "channels",
        "*.ace_1.conv_beta": "channels",
        "*.conv_1": "conv_in",
    },
)
# The loss reads the features of each layer whole.
DISCRIMINATOR = Plan(
    units=("discriminator_*",),
    tensor={"discriminator_*.model0.0": "gathered", "discriminator_*.model*.0.0": "gathered"},
)
