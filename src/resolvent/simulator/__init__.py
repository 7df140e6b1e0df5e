"""The simulator: cohorts, rounds fused in one compiled call, evaluation, metrics and checkpoints."""
