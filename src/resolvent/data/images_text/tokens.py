"""Texts as integers: characters by LEAF's alphabet, words by how frequent they are."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
PAD, UNKNOWN = "<pad>", "<unknown>"
UNKNOWN_TOKEN = 1  # after <pad>
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[!?:;()]+")
_CODE_POINTS = 0x110000


def _character_table() -> NDArray[np.uint8]:
    """The token of each Unicode code point; a character that LEAF's alphabet lacks becomes a space."""
    table = np.full(_CODE_POINTS, CHARACTERS.index(" "), np.uint8)
    table[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))
    return table


def encode_characters(texts: Sequence[str]) -> list[NDArray[np.uint8]]:
    """The tokens [length] of each text, one per character: its position in LEAF's alphabet of 80 characters."""
    table = _character_table()
    return [table[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")] for text in texts]


def split_words(text: str) -> list[str]:
    """The words of a text, in lower case, and its emoticons and question or exclamation marks.

    >>> split_words("I don't like it, at all :)")
    ['i', "don't", 'like', 'it', 'at', 'all', ':)']
    """
    return _WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[list[str]], size: int) -> tuple[str, ...]:
    """Padding, unknown, and the ``size`` most frequent words; equally frequent words are in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    return (PAD, UNKNOWN, *sorted(counts, key=lambda w: (-counts[w], w))[:size])


def encode_words(texts: list[list[str]], words: int, size: int) -> tuple[NDArray[Any], tuple[str, ...]]:
    """The tokens of each text's first words, padded in front, and the vocabulary of all texts.

    Args:
        size: number of words in the vocabulary, besides padding and unknown.

    Returns:
        [n, words] tokens (int32), and the words that they stand for.
    """
    vocabulary = build_vocabulary(texts, size)
    token_of = {word: i for i, word in enumerate(vocabulary)}
    x = np.zeros((len(texts), words), np.int32)
    for row, text in zip(x, texts, strict=True):
        first = [token_of.get(word, UNKNOWN_TOKEN) for word in text[:words]]
        row[words - len(first):] = first
    return x, vocabulary
