"""The page: an image in, what the model finds in it out."""
from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import gradio as gr
from fastapi import FastAPI

from .. import ImageError
from ..outputs import LARGEST_JPEG
from .responses import describe, drawing_of, encoded
from .service import Busy, ModelError, Served, Service, TimedOut
from .theme import FONT, ICON, MONO, STYLE, alert, heading, table_of, times

KEPT_SECONDS = 600  # files of the page
REFUSALS = (Busy, ImageError, ModelError, TimedOut)
EVENT: dict[str, Any] = dict(
    preprocess=False,  # or Gradio decodes images, without our limits
    api_visibility='private',
    concurrency_limit=None,  # the service has its own
    show_progress='minimal')


class Figures(Protocol):
    """What draws figures of what a model looks at: :mod:`colonnade.visualization.figures`."""

    def pictures_of(self, model: Any) -> Mapping[str, Any]:
        """The methods that a model has, by name."""

    def picture(self, model: Any, image: Any, name: str) -> Any:
        """A figure of an image by a method."""

    def as_bytes(self, figure: Any, kind: str) -> bytes:
        """The content of a file of a figure."""


class Page:
    """What happens on the page; nothing in it belongs to one user.

    Args:
        service: That answers.
        folder: Where drawings lie for the browser to fetch.
        figures: Draws what the model looks at.
    """

    def __init__(self, service: Service, folder: Path, figures: Figures) -> None:
        self.service, self.folder, self.figures = service, folder, figures

    def predict(self, upload: dict[str, Any] | None, threshold: float, opacity: float,
                key: str | None) -> tuple[Any, str | None, str | None, str, Any]:
        """A new image: what its box then holds, key of the answer, drawing, table and times.

        The box of an image that is refused is cleared, as if its user had removed it.
        """
        self.service.kept.drop(key)
        if upload is None:
            return gr.skip(), None, None, '', '' if key else gr.skip()  # why it was refused
        try:
            served = self.service.predict(Path(upload['path']).read_bytes())
        except REFUSALS as error:
            return None, None, None, '', alert(f'{name_of(upload)}: {error}')
        return gr.skip(), self.service.kept.put(served), *self.show(served, threshold, opacity)

    def redraw(self, threshold: float, opacity: float, key: str | None) -> tuple[Any, Any, str]:
        """Other settings for the same answer: drawing, table and times."""
        served = self.service.kept.get(key)
        if served is None:
            lost = 'this answer is kept no longer: send the image again'
            return gr.skip(), gr.skip(), alert(lost) if key else ''
        return self.show(served, threshold, opacity)

    def show(self, served: Served, threshold: float, opacity: float) -> tuple[str, str, str]:
        """Drawing, table and times of an answer."""
        threshold, opacity = share(threshold), share(opacity)
        start = perf_counter()
        with self.service.images:
            drawing = self.saved(drawing_of(served, threshold=threshold, opacity=opacity))
        spent = times(
            decoding=served.decoding,
            waiting=served.waiting,
            model=served.computing,
            drawing=perf_counter() - start)
        return drawing, table_of(served.result, threshold), spent

    def picture(self, name: str | None, key: str | None) -> tuple[Any, str]:
        """A picture of what the model looks at, and how long it took."""
        served = self.service.kept.get(key)
        if served is None or not name:
            return None, alert('send an image under Prediction first')
        start = perf_counter()
        try:
            content = self.service.call(lambda: self.figures.as_bytes(
                self.figures.picture(self.service.plain(), served.image, name), 'png'))
        except REFUSALS as error:
            return None, alert(str(error))
        return self.stored(content, f'{name}.png'), times(drawing=perf_counter() - start)

    def saved(self, drawing: Any) -> str:
        """A drawing as a file that the browser can fetch."""
        if max(drawing.size) > LARGEST_JPEG:
            return self.stored(encoded(drawing, 'PNG'), 'prediction.png')
        return self.stored(encoded(drawing, 'JPEG', quality=92, subsampling=0), 'prediction.jpg')

    def stored(self, content: bytes, name: str) -> str:
        """A file in the folder, whose path cannot be guessed."""
        path = self.folder / secrets.token_hex() / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        return str(path)


def share(value: Any) -> float:
    """What a slider sent, made a number from 0 to 1 whatever it is."""
    return min(1., max(0., float(value))) if isinstance(value, (int, float)) else 0.


def name_of(upload: dict[str, Any]) -> str:
    """What the user calls the file."""
    return Path(upload.get('orig_name') or 'the image').name


def build_page(service: Service, folder: Path, figures: Figures) -> gr.Blocks:
    """Layout and events."""
    page, about = Page(service, folder, figures), describe(service.model)
    with gr.Blocks(
            title='Colonnade',
            fill_width=True,
            analytics_enabled=False,
            delete_cache=(KEPT_SECONDS // 10, KEPT_SECONDS)) as blocks:
        gr.HTML(heading(about))
        key = gr.State()
        with gr.Tabs():
            with gr.Tab('Prediction'):
                prediction_tab(page, key, has_scores=about['kind'] != 'labels')
            with gr.Tab('Attention and features') as tab:
                pictures_tab(page, key, tab)
    return blocks.queue(max_size=64, api_open=False, default_concurrency_limit=None)


def prediction_tab(page: Page, key: gr.State, *, has_scores: bool) -> None:
    """Image and sliders on the left, drawing and table on the right."""
    with gr.Row():
        with gr.Column(scale=2, min_width=320):
            upload = gr.Image(
                show_label=False,
                placeholder='Drop, paste or choose an image',
                type='filepath',
                sources=['upload', 'clipboard'],
                buttons=['fullscreen'],
                height=300,
                elem_id='upload')
            threshold = slider('Threshold of scores', 0.3, 'threshold', visible=has_scores)
            opacity = slider('Opacity', 0.5, 'opacity')
        with gr.Column(scale=3, min_width=320):
            drawing = output('drawing', 'the image with what the model finds in it')
            status = gr.HTML(elem_id='status', elem_classes='status')
            table = gr.HTML(elem_id='table')
    shown = [drawing, table, status]
    upload.change(
        page.predict, [upload, threshold, opacity, key], [upload, key, *shown],
        show_progress_on=shown,
        **EVENT)
    for each in (threshold, opacity):
        each.change(
            page.redraw, [threshold, opacity, key], shown, trigger_mode='always_last', **EVENT)


def slider(label: str, value: float, name: str, *, visible: bool = True) -> gr.Slider:
    """A number from 0 to 1."""
    return gr.Slider(
        0, 1, value=value, step=0.01, label=label, elem_id=name, visible=visible, buttons=[])


def output(name: str, description: str) -> gr.Image:
    """An image that the page shows."""
    return gr.Image(
        show_label=False,
        interactive=False,
        buttons=['download', 'fullscreen'],
        elem_id=name,
        alt_text=description)


def pictures_tab(page: Page, key: gr.State, tab: gr.Tab) -> None:
    """What the model looks at on the image of the first tab."""
    names = list(page.figures.pictures_of(page.service.model))
    chosen = gr.Radio(names, value=names[0], show_label=False, elem_id='kind')
    status = gr.HTML(elem_id='picture-status', elem_classes='status')
    picture = output('picture', 'what the model looks at')
    for event in (chosen.input, tab.select):
        event(page.picture, [chosen, key], [picture, status], trigger_mode='always_last', **EVENT)


def mount_page(app: FastAPI, service: Service, folder: Path, figures: Figures) -> FastAPI:
    """The page at ``/`` of an application; nothing in it is fetched from elsewhere."""
    colours = gr.themes.Color(*('#effafa', '#d5f0f1', '#aee0e3', '#7cc8ce', '#48a6af', '#2b8993',
                                '#1f6f78', '#1d5962', '#1c4951', '#1a3d44', '#0b272d'))
    theme = gr.themes.Base(
        primary_hue=colours, neutral_hue='slate', font=list(FONT), font_mono=list(MONO)).set(
            color_accent='*primary_600',
            body_text_color_subdued='*neutral_600',
            body_text_color_subdued_dark='*neutral_300')
    return gr.mount_gradio_app(
        app,
        build_page(service, folder, figures),
        '/',
        theme=theme,
        css=STYLE,
        head=ICON,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        allowed_paths=[],
        max_file_size=service.limits.max_bytes)
