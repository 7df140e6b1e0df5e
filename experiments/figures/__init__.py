"""The figures: ``NAME.yaml`` has the experiments and the claims, ``NAME.py`` the rules that its claims alone need.

A hyphen of the name is an underscore in the name of the module. A rule is a public function of the module: it takes one
seed's curves and the claim's arguments, and returns items.
"""
