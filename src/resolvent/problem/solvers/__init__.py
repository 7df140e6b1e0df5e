"""How a party minimises its subproblem."""
