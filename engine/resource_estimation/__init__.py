"""What a training needs before it is started: memory, steps, disk, time (``train.py --plan``)."""
