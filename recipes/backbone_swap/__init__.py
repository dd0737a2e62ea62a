"""Replacement of the backbone in a config of mmdet or mmseg."""
