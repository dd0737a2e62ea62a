"""Probes of frozen features on a custom dataset, for `colonnade rank-backbones`."""
