"""Weights: files read safely, their layouts recognised, and loaded strictly."""
