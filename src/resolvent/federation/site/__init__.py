"""A site: its table, its limits, its answers."""
