"""What a federation does: algorithms as pure functions of message, party and server, and their presets."""
