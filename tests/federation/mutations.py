"""Damaged messages: with a wrong checksum, as by an accident, or with a correct one, as by an attacker."""

import hashlib
import json


def mutated(data, random, keep=0):
    """The bytes with a random change behind the first ``keep`` bytes: bits, cuts, insertions, repeats."""
    original, data = data, bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        at = int(random.integers(keep, max(len(data), keep + 1)))
        match int(random.integers(0, 5)):
            case 0 | 1:
                if at < len(data):
                    data[at] ^= 1 << int(random.integers(0, 8))
            case 2:
                del data[at:at + int(random.integers(1, 40))]
            case 3:
                data[at:at] = random.bytes(int(random.integers(1, 40)))
            case 4:
                data[at:at] = data[keep:keep + int(random.integers(1, 200))]
    return bytes(data) if data != original else mutated(original, random, keep)


def resealed(data, header=None):
    """The bytes with a correct checksum, and with other bytes as the message's header."""
    content = data[40:]
    if header is not None:
        length = int.from_bytes(content[:8], "little")
        outer = json.loads(content[8:8 + length])
        outer["__metadata__"]["header"] = header.decode()
        text = json.dumps(outer).encode()
        content = len(text).to_bytes(8, "little") + text + content[8 + length:]
    return data[:8] + hashlib.sha256(content).digest() + content
