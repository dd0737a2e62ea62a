"""Record of a training run, and the pages that show it."""
