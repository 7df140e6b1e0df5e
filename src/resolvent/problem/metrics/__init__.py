"""Numbers that say how well a model predicts samples with known labels."""
