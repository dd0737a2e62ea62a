"""What a training records of itself at each evaluation, and the pages that show it."""
