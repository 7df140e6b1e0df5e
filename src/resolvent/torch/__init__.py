"""Networks of PyTorch: translated into JAX, trained there, and given back."""
