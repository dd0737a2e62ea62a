"""Time and memory of trunks and detectors, side by side; behind tools/benchmark.py."""
