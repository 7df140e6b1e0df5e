"""Federated methods, one family a file."""
