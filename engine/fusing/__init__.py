"""Whole models in the form for evaluation: folded, merged and without copies."""
