"""The engine: cohorts, rounds fused in one compiled call, evaluation, checkpoints."""
