"""Custom datasets: what a config has to say of them, decided from their files."""
