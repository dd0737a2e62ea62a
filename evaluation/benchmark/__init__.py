"""Time and memory of backbones and detectors, side by side; behind tools/benchmark.py."""
