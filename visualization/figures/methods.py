"""The kinds of pictures, and which of them a model has."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from .attention import (attention_panels, channel_panels, class_attention_panels, magnitude_panels,
                        mixing_panels)
from .feature_figures import feature_panels
from .figure_options import Options
from .grad_cam import grad_cam_panels
from .layout import Drawing, figure_of

ALWAYS = {'size', 'trust'}  # options that concern all pictures


@dataclass(frozen=True)
class Kind:
    """A kind of pictures.

    Attributes:
        panels: From a model, options and the images of a call to what draws one of them.
        suits: Whether a trunk has what is shown.
        options: Those that it follows.
    """
    panels: Callable[[Model, Options, Callable[[], Iterable[Seen]]], Callable[[Seen], Drawing]]
    suits: Callable[[nn.Module], bool]
    options: frozenset[str]


def kind(panels: Callable, suits: Callable[[nn.Module], bool], options: str) -> Kind:
    return Kind(panels, suits, frozenset(options.split()) | ALWAYS)


def is_trunk(*classes: type[nn.Module]) -> Callable[[nn.Module], bool]:
    return lambda trunk: isinstance(trunk, classes)


KINDS = {
    'class-attention':
    kind(class_attention_panels, is_trunk(XCiT, CaiT), 'classifier blocks heads nearest'),
    'attention':
    kind(attention_panels, has_token_attention, 'blocks heads point nearest'),
    'query-key':
    kind(magnitude_panels, is_trunk(XCiT), 'blocks heads nearest'),
    'channel-attention':
    kind(channel_panels, is_trunk(XCiT), 'blocks heads'),
    'mixing':
    kind(mixing_panels, is_trunk(ResMLP), 'blocks point'),
    'features':
    kind(feature_panels, lambda _: True, 'nearest'),
    'grad-cam':
    kind(grad_cam_panels, lambda _: True, 'target nearest'),
}


def pictures_of(model: Model, *, classifier: Any = None) -> tuple[str, ...]:
    """The kinds of pictures that a model has, in the order in which they are listed in the page.

    Args:
        model: Of :func:`colonnade.load`.
        classifier: Weights of a classifier, if there are any; ``class-attention`` needs them.
    """
    trunk = model.module.backbone
    return tuple(name for name, each in KINDS.items()
                 if each.suits(trunk) and (name != 'class-attention' or classifier is not None))


def picture(model: Model, image: Source, name: str, **options: Any) -> Figure:
    """A picture of what a model looks at on an image.

    The model is as before afterwards, but must not be used by other threads meanwhile.

    Args:
        model: Of :func:`colonnade.load`.
        image: A path, an image of Pillow's, RGB values ``(H, W, 3)`` or a file's content.
        name: One of :func:`pictures_of`.
        **options: See :class:`.Options`.

    Returns:
        A figure of matplotlib's; :func:`.as_bytes` makes a PNG or PDF of it.

    Raises:
        ImageError: If the image cannot be read.
        ValueError: If the model has no such picture, or an option does not fit.
    """
    return next(pictures(model, [image], name, **options))


def pictures(model: Model, images: Sequence[Source], name: str, **options: Any) -> Iterator[Figure]:
    """As :func:`picture`, of several images; ``features`` have the same colours in all of them.

    Raises:
        ImageError: If an image cannot be read.
        ValueError: If the model has no such picture, or an option does not fit.
    """
    made = Options.of(options)
    check(model, [name], made)

    def each_seen() -> Iterator[Seen]:
        return (see(model, read_image(image), made.size, name_of(image)) for image in images)

    draw = KINDS[name].panels(model, made, each_seen)
    return (figure_of(draw(seen)) for seen in each_seen())


def check(model: Model, names: Sequence[str], options: Options) -> None:
    """Whether a model has these pictures, and whether they follow all options that are set.

    Raises:
        ValueError: If not.
    """
    for name in names:
        if name not in KINDS or not KINDS[name].suits(model.module.backbone):
            there = ', '.join(pictures_of(model, classifier=options.classifier or True))
            raise UserError(f'{type(model.module.backbone).__name__} has no picture {name}; it '
                            f'has {there}')
    used = frozenset().union(*(KINDS[name].options for name in names))
    if unused := sorted(options.set_names() - used):
        raise UserError(f'no effect on {", ".join(names)}: leave out the option '
                        f'{" and the option ".join(unused)}')
