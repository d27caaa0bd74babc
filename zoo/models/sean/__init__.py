"""SEAN: images from label maps, a style code for each region (Zhu et al., CVPR 2020, arXiv 1911.12861)."""
