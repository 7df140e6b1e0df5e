"""Mathematics with no federated word in it: trees as vectors, proximal operators, robust centres."""
