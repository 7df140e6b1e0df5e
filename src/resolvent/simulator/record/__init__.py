"""What a run measures, shows and returns."""
