"""Time and memory of backbones and detectors, for `colonnade benchmark`."""
