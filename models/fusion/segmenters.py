"""mmseg's segmenter without the interpolation of logits that have their size already."""
from __future__ import annotations

from collections.abc import Sequence

from mmseg.models.segmentors import encoder_decoder
from mmseg.structures import SegDataSample
from torch import Tensor, nn

from colonnade.backbones.kernels.fast_path import is_plain


class EncoderDecoder(encoder_decoder.EncoderDecoder):
    """mmseg's; its name is shown to users and stays."""

    def postprocess_result(
            self,
            seg_logits: Tensor,
            data_samples: Sequence[SegDataSample] | None = None) -> Sequence[SegDataSample]:
        """Logits ``(B, C, H, W)`` of the network's input, and labels, of the original images."""
        samples = data_samples or ()
        if not samples or not all(has_size(each, tuple(seg_logits.shape[2:])) for each in samples):
            return super().postprocess_result(seg_logits, data_samples)
        for sample, found in zip(samples, super().postprocess_result(seg_logits), strict=True):
            sample.seg_logits, sample.pred_sem_seg = found.seg_logits, found.pred_sem_seg
        return samples


def has_size(sample: SegDataSample, size: tuple[int, int]) -> bool:
    """Whether the original image has this size and was neither flipped nor padded."""
    about = sample.metainfo
    padding = about.get('img_padding_size', about.get('padding_size', ()))
    return tuple(about['ori_shape']) == size and not any(padding) and not about.get('flip')


def spare_interpolation(model: nn.Module) -> list[str]:
    """Let a segmenter leave logits as they are that have the size of the original image.

    Returns:
        A line, if it is one of mmseg's and as it was built.
    """
    if not is_plain(model, encoder_decoder.EncoderDecoder):
        return []
    model.__class__ = EncoderDecoder
    return ['logits of the right size are not interpolated']
