"""The golden file: arrays that a change of the code must not change.

``record`` runs every preset in every way in which rounds can run, a federation in process, and four commands, and
writes their numbers. ``check`` runs them again and compares. ``changes.yaml`` lists the arrays that are meant to
differ from the file, and why.

What is recorded is what a user can read: models, metrics, messages, files. The state of a server or a party has no
entry, because its structure may change; what it holds shows itself in the models of the next round.
"""
