"""Which parties take part in a round, with which weight, and how much work they can do."""
