"""Maps from the replies of a round to one vector."""
