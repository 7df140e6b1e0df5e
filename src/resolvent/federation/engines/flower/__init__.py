"""Flower as the engine."""
