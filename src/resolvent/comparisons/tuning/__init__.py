"""Tuning: the hyperparameters of methods, chosen by their results on validation samples."""
