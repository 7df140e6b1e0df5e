"""Finished models: what they predict for new rows, how well, calibrated and explained, with intervals."""
