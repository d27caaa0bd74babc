"""Style matrices put together: regions of several pictures, means where a picture lacks one, blends of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.models.sean.labels import one_hot, shrink
from zoo_datasets.errors import InputError, listed


@dataclass(frozen=True)
class Styles:
    """A style code a label.

    Attributes:
        codes: [labels, style length]; zeros where not known.
        known: bool [labels].
    """

    codes: Tensor
    known: Tensor

    def to_json(self) -> list[list[float] | None]:
        """A row a label, None where not known: what :meth:`from_json` reads."""
        return [row if known else None for row, known in zip(self.codes.tolist(), self.known, strict=True)]

    @classmethod
    def from_json(cls, rows: Sequence[Sequence[float] | None], length: int) -> Styles:
        """Styles on the CPU, float64."""
        codes = torch.tensor([row or [0.0] * length for row in rows], dtype=torch.float64)
        return cls(codes, torch.tensor([row is not None for row in rows]))

    def to(self, like: Tensor) -> Styles:
        """On the device and in the precision of another tensor."""
        return Styles(self.codes.to(like), self.known.to(like.device))


def styles_of(codes: Tensor, labels: Tensor) -> list[Styles]:
    """A batch's codes, with which of them the images have. See :func:`regions_seen`."""
    seen = regions_seen(labels, codes.shape[1])
    return [Styles(*row) for row in zip(codes, seen, strict=True)]


def regions_seen(labels: Tensor, count: int) -> Tensor:
    """Whether the encoder sees a region, bool [rows, count]: it looks at every second pixel of the map."""
    return one_hot(shrink(labels, 2), count, torch.float32).flatten(2).any(2)


def style_sums(codes: Tensor, labels: Tensor) -> Tensor:
    """What mean styles are made of, to be added up over batches and ranks: float64 [labels, style length + 1].

    Args:
        codes: [rows, labels, style length] of the images. labels: [rows, height, width].
    """
    seen = regions_seen(labels, codes.shape[1]).double().unsqueeze(2)
    return torch.cat((codes * seen, seen), dim=2).sum(0)


def mean_styles(sums: Tensor) -> Styles:
    """The mean code of each label over the images that have it, from sums of :func:`style_sums`."""
    count = sums[:, -1:]
    return Styles(sums[:, :-1] / count.clamp(min=1.0), count.squeeze(1) > 0)


def filled(style: Styles, means: Styles | None) -> Styles:
    """The style, with means in place of what it lacks."""
    if means is None:
        return style
    means = means.to(style.codes)
    codes = torch.where(style.known.unsqueeze(1), style.codes, means.codes)
    return Styles(codes, style.known | means.known)


def blended(first: Styles, second: Styles, amount: float | Tensor) -> Styles:
    """Codes on the line from ``first`` (amount 0) to ``second`` (1); where one of the two is not known, the other's.

    Args:
        amount: one for all regions, or [labels].
    """
    share = torch.as_tensor(amount, dtype=first.codes.dtype, device=first.codes.device).expand(
        len(first.codes)
    )
    share = torch.where(first.known, share, 1.0)
    share = torch.where(second.known, share, 0.0).unsqueeze(1)
    return Styles(torch.lerp(first.codes, second.codes, share), first.known | second.known)


def with_regions(style: Styles, regions: Mapping[int, Tensor], amount: float = 1.0) -> Styles:
    """The style with other codes, [style length], for some labels; ``amount`` as in :func:`blended`."""
    codes, known = torch.zeros_like(style.codes), torch.zeros_like(style.known)
    for label, code in regions.items():
        codes[label], known[label] = code, True
    return blended(style, Styles(codes, known), amount)


def require_styles(style: Styles, labels: Tensor, names: Sequence[str], what: str) -> None:
    """Raises unless there is a style for each region of a label map [height, width].

    Args:
        what: what messages call the map.

    Raises:
        InputError: the names of the regions without.
    """
    present = one_hot(labels.unsqueeze(0), len(names), torch.float32).flatten(2).any(2)[0]
    lacking = [names[label] for label in (present & ~style.known).nonzero().flatten().tolist()]
    if lacking:
        raise InputError(
            f"{what}: has {listed(lacking)}, for which the style picture has no style and the run no mean; "
            f"give --region {lacking[0]}=IMAGE"
        )


def region_code(codes: Tensor, labels: Tensor, label: int, name: str, what: str) -> Tensor:
    """One region's code, [style length], of an image's ``codes`` [labels, style length] and map [height, width].

    Raises:
        InputError: the image has no such region.
    """
    if not regions_seen(labels.unsqueeze(0), len(codes))[0, label]:
        raise InputError(f"{what}: has no region {name!r} to take the style of")
    return codes[label]
