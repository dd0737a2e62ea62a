"""What a run learnt, recorded at its evaluations and laid out as a page."""
