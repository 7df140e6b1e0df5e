"""The reference: many methods, tuned with the same budget, on real problems; one command fills and reads the table."""
