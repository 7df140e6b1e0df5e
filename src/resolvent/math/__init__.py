"""Mathematics without federated terms: trees as vectors, proximal operators, robust centres, Anderson, codecs."""
