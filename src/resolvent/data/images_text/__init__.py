"""Images, texts and tokens."""
