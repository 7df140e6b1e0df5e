"""Federated data sets: reading, tables, partitions and feature shifts."""
