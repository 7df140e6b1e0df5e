"""Files: downloads, digests, locks, arrays on disk."""
