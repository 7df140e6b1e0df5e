"""Secure sums: the server learns the sum of the sites' replies, and no reply."""
