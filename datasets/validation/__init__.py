"""What is wrong with data sets, found before training and by tools/check_dataset.py."""
