"""What one party has: its data, its model and loss, its oracle, its subproblem and the solver that answers it."""
