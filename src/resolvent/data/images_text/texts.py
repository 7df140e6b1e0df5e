"""Text data sets: Shakespeare by role, sentiment of short messages, Stack Exchange posts. Tokens are integers."""

import html
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.arguments import checked
from resolvent.data.federated import FederatedData
from resolvent.data.files import data_files as files
from resolvent.data.images_text.array_encoding import ArrayEncoding
from resolvent.data.images_text.formats import iterate_xml_rows
from resolvent.data.images_text.tokens import (
    CHARACTERS,
    UNKNOWN_TOKEN,
    build_vocabulary,
    encode_characters,
    encode_words,
    split_words,
)
from resolvent.data.partition.partitions import ByUser, Partition, divide
from resolvent.errors import InputError, check_range, nearest, shorten

if TYPE_CHECKING:
    import pandas as pd

_TAG = re.compile(r"<[^>]*>")
_SENTIMENT140_COLUMNS = ["polarity", "tweet_id", "date", "query", "user_id", "text"]
_QUESTION, _ANSWER = "1", "2"
_SITE_ACCOUNT = "-1"


@checked
def shakespeare(*, file: str = "shakespeare/plays_by_role.jsonl", length: int = 80, stride: int = 1,
                max_samples: int | None = None, partition: Partition = ByUser(), validation: float = 0.0,  # noqa: B008
                test: float = 0.2, seed: int = 0) -> FederatedData:
    """Shakespeare's plays by speaking role: predict the character after each window of 80 characters.

    A role's speeches are joined by newlines. A sample is ``length`` characters; its label is the next character. The
    80 characters are LEAF's; every other character becomes a space. FedProx uses 143 roles: ``partition: {name:
    by_user, parties: 143, min_samples: 64}``. Source: FedProx, section 5.1 and C.1.

    Args:
        file: JSON lines with play, role and text. Or plain text (Tiny Shakespeare): the role and a colon are on the
            line before its speech, and a blank line ends the speech. The path is absolute or lies in a data folder.
        length: number of characters in an input.
        stride: number of characters from one window to the next; 1 makes every character after the first ``length``
            a label.
        max_samples: maximum number of samples of a role, its first ones; default: no maximum.
        partition: how samples are distributed over parties; the users of by_user are the pairs of play and role.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of the partition and the split.

    Raises:
        InputError: the file is missing, cut off or in neither format; no role speaks more than ``length`` characters.

    Example:
        >>> data = rv.datasets.shakespeare(max_samples=200)  # doctest: +SKIP
    """
    check_range("shakespeare", "[1, inf)", length=length, stride=stride)
    speeches = sorted(_read_speeches(files.find(file, fetch="shakespeare")).items())
    windows: list[NDArray[np.uint8]] = []
    roles: list[str] = []
    for (role, _), tokens in zip(speeches, encode_characters([text for _, text in speeches]), strict=True):
        if len(tokens) > length:
            windows.append(np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride][:max_samples])
            roles.append(role)
    if not windows:
        raise InputError(f"shakespeare: no role of {shorten(file)} speaks more than {length} characters: ask for a "
                         "smaller length")
    samples, users = np.concatenate(windows), np.repeat(np.arange(len(roles)), [len(w) for w in windows])
    data = divide(samples[:, :-1], samples[:, -1], partition, users=users, names=roles, classes=list(CHARACTERS),
                  seed=seed, validation=validation, test=test, name="Shakespeare", vocabulary=tuple(CHARACTERS))
    return replace(data, encoding=ArrayEncoding(data.input_shape, data.task, data.classes, tokens=data.vocabulary,
                                                text="characters"))


def _read_speeches(path: Path) -> dict[str, str]:
    """All speeches of each role, joined, by ``play: role``."""
    try:
        text = files.read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {shorten(error)}") from error
    speeches: dict[str, list[str]] = {}
    pairs = _json_speeches(path, text) if ".jsonl" in path.name else _plain_speeches(path, text)
    for role, speech in pairs:
        speeches.setdefault(role, []).append(speech)
    return {role: "\n".join(parts) for role, parts in speeches.items()}


def _json_speeches(path: Path, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        try:
            speech = json.loads(line)
            yield f"{speech['play']}: {speech['role']}", speech["text"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number} is cut off, or is not a JSON object with play, role and text "
                             f"({shorten(repr(error))})") from error


def _plain_speeches(path: Path, text: str) -> Iterator[tuple[str, str]]:
    for number, block in enumerate(re.split(r"\n\s*\n", text.strip()), 1):
        role, _, speech = block.partition("\n")
        if not role.endswith(":"):
            raise InputError(f"{path}, speech {number}: its first line must be a role and a colon, not "
                             f"{shorten(repr(role))}")
        yield role[:-1], speech


@checked
def sentiment(*, file: str = "sentiment/training.1600000.processed.noemoticon.csv", user: str = "user_id",
              label: str = "polarity", text: str = "text", classes: list[str] | None = None, words: int = 25,
              vocabulary: int = 10_000, partition: Partition = ByUser(), validation: float = 0.0,  # noqa: B008
              test: float = 0.2, seed: int = 0) -> FederatedData:
    """Short messages by account and their sentiment: Sentiment140, or any CSV with a user, a label and a text.

    An input is the first ``words`` words of a message, padded in front. Words are in lower case; emoticons count as
    words. They are numbered by their frequency in all messages. FedProx uses 772 accounts: ``partition: {name: by_user,
    parties: 772, min_samples: 40}``. Source: FedProx, section 5.1 and C.1.

    Args:
        file: a CSV with these columns, or Sentiment140's own file, which has no header. The path is absolute or lies
            in a data folder.
        user: the column with the message's author.
        label: the column with its sentiment.
        text: the column with its words.
        classes: the labels to use, in the order of their class numbers; default: all that occur, sorted.
        words: number of tokens in an input.
        vocabulary: number of words with a token, besides padding and unknown.
        partition: how messages are distributed over parties.
        validation: share of each party's messages for validation.
        test: share of each party's messages for testing.
        seed: seed of the partition and the split.

    Raises:
        InputError: the file is missing or cut off, or lacks these columns or labels.

    Example:
        >>> data = rv.datasets.sentiment(partition=rv.partitions.ByUser(parties=100, min_samples=40))  # doctest: +SKIP
    """
    check_range("sentiment", "[1, inf)", words=words, vocabulary=vocabulary)
    path = files.find(file, fetch="sentiment140")
    table = _read_messages(path, (user, label, text))
    labels = sorted(set(table[label]))
    for name in classes or ():
        if name not in labels:
            raise InputError(f"{path}: no message has the {shorten(label)} {shorten(repr(name))}: the values are "
                             f"{shorten(', '.join(map(repr, labels)))}{nearest(name, labels)}")
    names = labels if classes is None else classes
    if len(names) < 2:
        raise InputError(f"{path}: the only {shorten(label)} is {shorten(', '.join(names))}, so there is nothing to "
                         "learn: choose another label, or more classes")
    table = table[table[label].isin(names)]
    y = table[label].map({c: i for i, c in enumerate(names)}).to_numpy()
    x, token_words = encode_words([split_words(t) for t in table[text]], words, vocabulary)
    data = divide(x, y, partition, users=table[user].to_numpy(str), classes=names, seed=seed, validation=validation,
                  test=test, name=path.name.split(".")[0], vocabulary=token_words)
    return replace(data, encoding=ArrayEncoding(data.input_shape, data.task, data.classes, tokens=token_words,
                                                text="words"))


def _read_messages(path: Path, columns: Sequence[str]) -> "pd.DataFrame":
    """The messages with all columns as text. Sentiment140's own file is in Latin-1 and has no header."""
    import pandas as pd

    data = files.read(path)
    is_sentiment140 = re.match(rb'"[024]","\d+",', data) is not None
    try:
        table = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False,
                            header=None if is_sentiment140 else 0,
                            names=_SENTIMENT140_COLUMNS if is_sentiment140 else None,
                            encoding="latin-1" if is_sentiment140 else "utf-8")
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as CSV: {shorten(error)}") from error
    names = list(map(str, table.columns))
    for column in columns:
        if column not in table.columns:
            raise InputError(f"{path} has no column {shorten(repr(column))}: it has {shorten(', '.join(names))}"
                             f"{nearest(column, names)}")
        if (table[column] == "").any():
            row = int(np.flatnonzero(table[column] == "")[0]) + 1
            raise InputError(f"{path}, message {row}: the {shorten(column)} is missing: the file may be cut off there: "
                             "download it again, or complete the row")
    return table


@checked
def stackexchange(*, file: str = "stackexchange/Posts.xml", target: Literal["next_word", "tag"] = "next_word",
                  words: int = 20, vocabulary: int = 10_000, tags: int = 10,
                  partition: Partition = ByUser(), validation: float = 0.0, test: float = 0.2,  # noqa: B008
                  seed: int = 0) -> FederatedData:
    """Posts of a Stack Exchange site by author, from the public dump: predict the next word, or a question's tag.

    ``next_word``: the text of a post is cut into pieces of ``words`` words; a piece's label is the next word. Pieces
    whose next word is not in the vocabulary are left out. ``tag``: the input is a bag of words, [vocabulary] relative
    frequencies of the words in a post; the label is the first tag of the question, also for its answers. Only the
    most frequent ``tags`` are classes, and posts with other tags are left out. Posts without an author and posts of
    the site's own account are left out. The FedMix poster uses the users of Stack Overflow.

    Args:
        file: the dump's Posts.xml; the path is absolute or lies in a data folder.
        target: what to predict.
        words: number of tokens in an input (next_word).
        vocabulary: number of words with a token, besides padding and unknown.
        tags: number of tags that are classes, the most frequent ones (tag).
        partition: how samples are distributed over parties.
        validation: share of each party's samples for validation.
        test: share of each party's samples for testing.
        seed: seed of the partition and the split.

    Raises:
        InputError: the file is missing, cut off or not such a dump, or it has no sample.

    Example:
        >>> data = rv.datasets.stackexchange(target="tag", tags=50)  # doctest: +SKIP
    """
    check_range("stackexchange", "[1, inf)", words=words, vocabulary=vocabulary)
    path = files.find(file)
    posts = _read_posts(path)
    texts = [split_words(html.unescape(_TAG.sub(" ", body))) for body in posts.bodies]
    if target == "tag":
        names = [t for t, _ in Counter(t for t in posts.tags if t).most_common(tags)]
        rows = [i for i, t in enumerate(posts.tags) if t in names]
        if len(names) < 2:
            raise InputError(f"{path}: its posts have {len(names)} tags, so there is nothing to learn: choose the "
                             "target next_word")
        bags, token_words = _bags_of_words([texts[i] for i in rows], max(map(len, texts)), vocabulary)
        y = np.array([names.index(posts.tags[i]) for i in rows])
        data = divide(bags, y, partition, users=np.array([posts.owners[i] for i in rows]), classes=names, seed=seed,
                      validation=validation, test=test, name="Stack Exchange")
        return replace(data, features=token_words)
    token_words = build_vocabulary(texts, vocabulary)
    token_of = {word: i for i, word in enumerate(token_words)}
    pieces = [(owner, piece) for owner, text in zip(posts.owners, texts, strict=True)
              for piece in _cut_pieces(text, words) if piece[-1] in token_of]
    if not pieces:
        raise InputError(f"{path}: no post has more than {words} words: ask for fewer words")
    samples = np.array([[token_of.get(w, UNKNOWN_TOKEN) for w in piece] for _, piece in pieces], np.int32)
    return divide(samples[:, :-1], samples[:, -1], partition, users=np.array([owner for owner, _ in pieces]), seed=seed,
                  classes=list(token_words), validation=validation, test=test, name="Stack Exchange",
                  vocabulary=token_words)


class _Posts(NamedTuple):
    """Author, HTML and tag of each question and answer; the tag is the question's first one, or empty."""

    owners: list[str]
    bodies: list[str]
    tags: list[str]


def _read_posts(path: Path) -> _Posts:
    posts = _Posts([], [], [])
    tag_of: dict[str, str] = {}
    for row in iterate_xml_rows(path):
        if "Id" not in row or "PostTypeId" not in row:
            keys = shorten(", ".join(sorted(row)[:4]))
            raise InputError(f"{path} is not a Stack Exchange Posts.xml: a row has {keys}; expected Id, PostTypeId, "
                             "Body and others")
        tag = re.search(r"[<|]([^<>|]+)[>|]", row.get("Tags", ""))
        tag_of[row["Id"]] = tag.group(1) if tag else ""
        owner = row.get("OwnerUserId", _SITE_ACCOUNT)
        if row["PostTypeId"] in (_QUESTION, _ANSWER) and owner != _SITE_ACCOUNT:
            posts.owners.append(owner)
            posts.bodies.append(row.get("Body", ""))
            posts.tags.append(tag_of[row["Id"]] or tag_of.get(row.get("ParentId", ""), ""))
    if not posts.owners:
        raise InputError(f"{path} has no question or answer with an author: expected a Stack Exchange Posts.xml")
    return posts


def _bags_of_words(texts: list[list[str]], length: int, size: int) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """[n, vocabulary] relative frequencies of the words of each text, of at most ``length`` words; padding is 0."""
    x, token_words = encode_words(texts, length, size)
    bags = np.zeros((len(x), len(token_words)), np.float32)
    np.add.at(bags, (np.arange(len(x))[:, None], x), 1)
    bags[:, 0] = 0
    bags /= np.maximum(bags.sum(axis=1, keepdims=True), 1)
    return bags, token_words


def _cut_pieces(text: list[str], words: int) -> Iterator[list[str]]:
    """Successive pieces of ``words`` words, each with the word that follows it."""
    for start in range(0, len(text) - words, words):
        yield text[start:start + words + 1]
