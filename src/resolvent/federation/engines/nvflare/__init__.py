"""NVIDIA FLARE as the engine."""
