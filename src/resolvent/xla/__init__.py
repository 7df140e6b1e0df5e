"""How loops are compiled on a CPU. The only room that knows XLA's habits."""
