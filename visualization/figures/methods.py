"""The methods that draw figures, and which of them a model has."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from colonnade.backbones import CaiT, ResMLP, XCiT
from colonnade.backbones.token_attention import has_token_attention
from colonnade.common.errors import UserError
from colonnade.inference.model import Model
from colonnade.runtime.images import Source, name_of, read_image

from .activations import Seen, see
from .attention import (Draw, Images, attention_panels, channel_panels, class_attention_panels,
                        magnitude_panels, mixing_panels)
from .feature_figures import feature_panels
from .figure_options import Options
from .grad_cam import grad_cam_panels
from .layout import figure_of

Backbones = tuple[type[nn.Module], ...]
ALL_METHODS = frozenset({'size', 'trust'})  # options that concern all methods


@dataclass(frozen=True)
class Kind:
    """A method.

    Attributes:
        panels: Returns what draws an image, from a model, options and all images of a call.
        suits: Backbones that have what is shown, or a function that tells.
        settings: Names of the options that it follows, separated by blanks.
    """
    panels: Callable[[Model, Options, Images], Draw]
    suits: Backbones | Callable[[nn.Module], bool]
    settings: str

    @property
    def options(self) -> frozenset[str]:
        """Names of all options that it follows."""
        return ALL_METHODS | set(self.settings.split())

    def fits(self, backbone: nn.Module) -> bool:
        """Return True if a backbone has what is shown."""
        if isinstance(self.suits, tuple):
            return isinstance(backbone, self.suits)
        return self.suits(backbone)


KINDS = {
    'class-attention':
    Kind(class_attention_panels, (XCiT, CaiT), 'classifier blocks heads nearest'),
    'attention': Kind(attention_panels, has_token_attention, 'blocks heads point nearest'),
    'query-key': Kind(magnitude_panels, (XCiT, ), 'blocks heads nearest'),
    'channel-attention': Kind(channel_panels, (XCiT, ), 'blocks heads'),
    'mixing': Kind(mixing_panels, (ResMLP, ), 'blocks point'),
    'features': Kind(feature_panels, (nn.Module, ), 'nearest'),
    'grad-cam': Kind(grad_cam_panels, (nn.Module, ), 'target nearest'),
}  # yapf: disable


def available_methods(model: Model, *, classifier: Any = None) -> tuple[str, ...]:
    """Return the names of the figures that a model has, in the order of the documentation.

    Args:
        model: Model of :func:`colonnade.load`.
        classifier: Weights of a classifier, if there are any; ``class-attention`` needs them.
    """
    backbone = model.module.backbone
    return tuple(name for name, kind in KINDS.items()
                 if kind.fits(backbone) and (name != 'class-attention' or classifier is not None))


def picture(model: Model, image: Source, name: str, **options: Any) -> Figure:
    """Return a figure of what a model looks at on an image.

    The model is as before afterwards, but must not be used by other threads meanwhile.

    Args:
        model: Model of :func:`colonnade.load`.
        image: Path, Pillow image, RGB values ``(H, W, 3)`` or a file's content.
        name: One of :func:`available_methods`.
        **options: See :class:`.Options`.

    Returns:
        A figure of matplotlib; :func:`.as_bytes` makes a PNG or PDF of it.

    Raises:
        ImageError: If the image cannot be read.
        ValueError: If the model has no such figure, or an option does not fit.
    """
    return next(pictures(model, [image], name, **options))


def pictures(model: Model, images: Sequence[Source], name: str, **options: Any) -> Iterator[Figure]:
    """As :func:`picture`, of several images; ``features`` have the same colors in all of them.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If the model has no such figure, or an option does not fit.
    """
    checked = Options.of(options)
    check_methods(model, [name], checked)

    def see_all() -> Iterator[Seen]:
        return (see(model, read_image(image), checked.size, name_of(image)) for image in images)

    draw = KINDS[name].panels(model, checked, see_all)
    return (figure_of(draw(seen)) for seen in see_all())


def check_methods(model: Model, names: Sequence[str], options: Options) -> None:
    """Check that a model has these figures, and that they follow all options that are set.

    Raises:
        ValueError: If not.
    """
    backbone = model.module.backbone
    for name in names:
        if name not in KINDS or not KINDS[name].fits(backbone):
            known = ', '.join(available_methods(model, classifier=options.classifier or True))
            raise UserError(f'{type(backbone).__name__} has no picture {name}; it has {known}')
    used = frozenset().union(*(KINDS[name].options for name in names))
    if unused := sorted(options.set_names() - used):
        raise UserError(f'no effect on {", ".join(names)}: leave out the option '
                        f'{" and the option ".join(unused)}')
