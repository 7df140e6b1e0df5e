"""The server: agreement, rounds, stores."""
