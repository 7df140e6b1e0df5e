"""Random changes of valid input, for tests that hostile input is refused."""


def choose(rng, values):
    """One of the values, of any types."""
    return values[rng.integers(len(values))]


def mutate_bytes(data, rng, insertions):
    """Cut the end off, or change, insert or delete a few bytes.

    Args:
        data: bytes of a valid file.
        rng: NumPy's random generator.
        insertions: byte strings of which some are inserted.
    """
    changed = bytearray(data)
    change = rng.integers(4)
    if change == 0:
        return bytes(changed[:rng.integers(len(changed) + 1)])
    for _ in range(rng.integers(1, 6)):
        position = int(rng.integers(len(changed) + 1))
        if change == 1 and position < len(changed):
            changed[position] = rng.integers(256)
        elif change == 2:
            changed[position:position] = choose(rng, insertions)
        else:
            del changed[position:position + rng.integers(1, 9)]
    return bytes(changed)
