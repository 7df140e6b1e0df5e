"""The papers' experiments: claims, figures and their settings."""
