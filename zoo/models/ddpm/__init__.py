"""The toy DDPM: a diffusion model (Ho, Jain, Abbeel 2020) for short vectors of numbers, small enough to read.

schedule.py   how fast the data turns into noise
diffusion.py  the forward process, its posterior, the loss
sampler.py    back from noise to data: DDPM, DDIM
model.py      the network
convert.py    checkpoints of the published toy

Nothing is imported here, so that listing models costs no import of torch.
"""
