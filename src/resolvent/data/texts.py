"""Text data sets: Shakespeare by role, sentiment of short messages, Stack Exchange posts; tokens are integers."""

import html
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from resolvent.data import files
from resolvent.data.federated import FederatedData
from resolvent.data.partitions import ByUser, Partition, divide
from resolvent.errors import InputError, nearest

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CHARACTERS", "PAD", "UNKNOWN", "sentiment", "shakespeare", "stackexchange"]

CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
PAD, UNKNOWN = "<pad>", "<unknown>"
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[!?:;()]+")
_TAG = re.compile(r"<[^>]*>")
_SENT140 = ["polarity", "tweet_id", "date", "query", "user_id", "text"]


def shakespeare(*, file: str = "shakespeare/plays_by_role.jsonl", length: int = 80, stride: int = 1,
                most: int | None = None, partition: Partition = ByUser(), validation: float = 0.0,  # noqa: B008
                test: float = 0.2, seed: int = 0) -> FederatedData:
    """Shakespeare's plays by speaking role: the next character after each window of 80.

    A role's speeches are joined by newlines; a sample is ``length`` characters and, as label, the one that follows. The
    80 characters are LEAF's; one that is not among them becomes a space. FedProx keeps 143 roles: ``partition: {name:
    by_user, parties: 143, least: 64}``. Source: FedProx, section 5.1 and C.1.

    Args:
        file: JSON lines with play, role and text; or plain text in which the role, with a colon, stands on a line
            before its speech, and a blank line ends it (Tiny Shakespeare). Absolute, or in a data folder.
        length: characters in an input.
        stride: characters from one window to the next; 1 makes every character but the first ones a label.
        most: a role's first so many samples are kept; left out, all of them.
        partition: who holds which samples; by_user is by play and role.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of the partition and the split.

    Raises:
        InputError: the file is missing, cut off or in neither format; no role speaks ``length`` characters.
    """
    if length < 1 or stride < 1:
        raise InputError(f"shakespeare: length={length} and stride={stride} must be at least 1")
    code = np.full(0x110000, CHARACTERS.index(" "), np.uint8)
    code[[ord(c) for c in CHARACTERS]] = np.arange(len(CHARACTERS))
    windows: list[NDArray[np.uint8]] = []
    roles: list[str] = []
    for role, text in sorted(_speeches(files.find(file, fetch="shakespeare")).items()):
        tokens = code[np.frombuffer(text.encode("utf-32-le"), "<u4")]
        if len(tokens) > length:
            windows.append(np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::stride][:most])
            roles.append(role)
    if not windows:
        raise InputError(f"shakespeare: no role of {file} speaks more than {length} characters: ask for a shorter "
                         "length")
    held, users = np.concatenate(windows), np.repeat(np.arange(len(roles)), [len(w) for w in windows])
    return divide(held[:, :-1], held[:, -1], partition, users=users, names=roles, classes=list(CHARACTERS), seed=seed,
                  validation=validation, test=test, name="Shakespeare", vocabulary=tuple(CHARACTERS))


def _speeches(path: Path) -> dict[str, str]:
    """All that each role says, by ``play: role``."""
    try:
        text = files.read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text in UTF-8: {error}") from error
    said: dict[str, list[str]] = {}
    if ".jsonl" in path.name:
        for number, line in enumerate(text.splitlines(), 1):
            try:
                speech = json.loads(line)
                said.setdefault(f"{speech['play']}: {speech['role']}", []).append(speech["text"])
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{path}, line {number} is cut off, or no JSON object with play, role and text "
                                 f"({error!r})") from error
    else:
        for number, block in enumerate(re.split(r"\n\s*\n", text.strip()), 1):
            role, _, speech = block.partition("\n")
            if not role.endswith(":"):
                raise InputError(f"{path}, speech {number}: expected a role and a colon on its first line, found "
                                 f"{role[:40]!r}")
            said.setdefault(role[:-1], []).append(speech)
    return {role: "\n".join(speeches) for role, speeches in said.items()}


def sentiment(*, file: str = "sentiment/training.1600000.processed.noemoticon.csv", user: str = "user_id",
              label: str = "polarity", text: str = "text", classes: list[str] | None = None, words: int = 25,
              vocabulary: int = 10_000, partition: Partition = ByUser(), validation: float = 0.0,  # noqa: B008
              test: float = 0.2, seed: int = 0) -> FederatedData:
    """Short messages by account and how they feel: Sentiment140, or any CSV with a user, a label and a text.

    A message becomes its first ``words`` words, padded in front; words are lower-case letters, digits and emoticons'
    marks, numbered by how often they occur in all messages. FedProx keeps 772 accounts: ``partition: {name: by_user,
    parties: 772, least: 40}``. Source: FedProx, section 5.1 and C.1.

    Args:
        file: a CSV with these columns, or Sentiment140's own, which has no header. Absolute, or in a data folder.
        user: the column that says whose a message is.
        label: the column with its feeling.
        text: the column with its words.
        classes: the labels to keep, in the order of their numbers; left out, all that occur, sorted.
        words: tokens in an input.
        vocabulary: how many words have a number of their own, beside padding and unknown.
        partition: who holds which messages.
        validation: share of each party's messages kept for validation.
        test: share of each party's messages kept for testing.
        seed: of the partition and the split.

    Raises:
        InputError: the file is missing, cut off, or has no such columns or labels.
    """
    path = files.find(file, fetch="sentiment140")
    table = _messages(path, (user, label, text))
    found = sorted(set(table[label]))
    for wanted in classes or ():
        if wanted not in found:
            raise InputError(f"{path}: no message has the {label} {wanted!r}: they are {', '.join(map(repr, found))}"
                             f"{nearest(wanted, found)}")
    names = found if classes is None else classes
    if len(names) < 2:
        raise InputError(f"{path}: the only {label} is {', '.join(names)}, so there is nothing to learn")
    table = table[table[label].isin(names)]
    y = table[label].map({c: i for i, c in enumerate(names)}).to_numpy()
    x, known = _encode([tokens(t) for t in table[text]], words, vocabulary)
    return divide(x, y, partition, users=table[user].to_numpy(str), classes=names, seed=seed, validation=validation,
                  test=test, name=path.name.split(".")[0], vocabulary=known)


def _messages(path: Path, columns: Sequence[str]) -> "pd.DataFrame":
    """The columns as text; Sentiment140's own file is in Latin-1 and has no header."""
    import pandas as pd

    data = files.read(path)
    bare = re.match(rb'"[024]","\d+",', data) is not None
    try:
        table = pd.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False, header=None if bare else 0,
                            names=_SENT140 if bare else None, encoding="latin-1" if bare else "utf-8")
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}") from error
    for column in columns:
        if column not in table.columns:
            raise InputError(f"{path} has no column {column!r}: it has {', '.join(map(str, table.columns))}"
                             f"{nearest(column, map(str, table.columns))}")
        if (table[column] == "").any():
            row = int(np.flatnonzero(table[column] == "")[0]) + 1
            raise InputError(f"{path}, message {row}: the {column} is missing: it may be cut off there")
    return table


def stackexchange(*, file: str = "stackexchange/Posts.xml", target: Literal["next_word", "tag"] = "next_word",
                  words: int = 20, vocabulary: int = 10_000, tags: int = 10,
                  partition: Partition = ByUser(), validation: float = 0.0, test: float = 0.2,  # noqa: B008
                  seed: int = 0) -> FederatedData:
    """Posts of a Stack Exchange site by author, from the public dump: the next word, or the tag of a question.

    ``next_word``: a post, without its HTML, is cut into pieces of ``words`` words; the label is the word that follows
    each, among all words with a number (posts are dropped where that is none of them). ``tag``: which of the most
    frequent ``tags`` a question or an answer to it has, the first one of the question, from a bag of words, each the
    share of the post's words. Posts without an author, and the site's own account, are left out. The FedMix poster
    takes the users of Stack Overflow.

    Args:
        file: the dump's Posts.xml. Absolute, or in a data folder.
        target: what to predict.
        words: tokens in an input (next_word).
        vocabulary: how many words have a number of their own, beside padding and unknown.
        tags: how many of the most frequent tags are classes (tag).
        partition: who holds which samples.
        validation: share of each party's samples kept for validation.
        test: share of each party's samples kept for testing.
        seed: of the partition and the split.

    Raises:
        InputError: the file is missing, cut off or no such dump; nothing in it can be a sample.
    """
    path = files.find(file)
    owners, bodies, topics = _posts(path)
    texts = [tokens(html.unescape(_TAG.sub(" ", body))) for body in bodies]
    if target == "tag":
        names = [t for t, _ in Counter(t for t in topics if t).most_common(tags)]
        kept = [i for i, t in enumerate(topics) if t in names]
        if len(names) < 2:
            raise InputError(f"{path}: its posts have {len(names)} tags, so there is nothing to tell apart")
        x, known = _encode([texts[i] for i in kept], max(map(len, texts)), vocabulary)
        bags = np.zeros((len(x), len(known)), np.float32)
        np.add.at(bags, (np.arange(len(x))[:, None], x), 1)
        bags[:, 0] = 0
        bags /= np.maximum(bags.sum(axis=1, keepdims=True), 1)
        y = np.array([names.index(topics[i]) for i in kept])
        data = divide(bags, y, partition, users=np.array([owners[i] for i in kept]), classes=names, seed=seed,
                      validation=validation, test=test, name="Stack Exchange")
        return replace(data, features=known)
    known = _vocabulary(texts, vocabulary)
    number = {word: i for i, word in enumerate(known)}
    samples = [(owner, piece) for owner, text in zip(owners, texts, strict=True) for piece in _pieces(text, words)
               if piece[-1] in number]
    if not samples:
        raise InputError(f"{path}: no post has more than {words} words: ask for fewer")
    held = np.array([[number.get(w, 1) for w in piece] for _, piece in samples], np.int32)
    return divide(held[:, :-1], held[:, -1], partition, users=np.array([owner for owner, _ in samples]), seed=seed,
                  classes=list(known), validation=validation, test=test, name="Stack Exchange", vocabulary=known)


def _posts(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Author, HTML and first tag of each question and answer; an answer has its question's tag."""
    owners, bodies, topics = [], [], []
    tag_of: dict[str, str] = {}
    for row in files.xml_rows(path):
        if "Id" not in row or "PostTypeId" not in row:
            raise InputError(f"{path} is not a Stack Exchange Posts.xml: a row has {', '.join(sorted(row)[:4])}, "
                             "expected Id, PostTypeId, Body and others")
        found = re.search(r"[<|]([^<>|]+)[>|]", row.get("Tags", ""))
        tag_of[row["Id"]] = found.group(1) if found else ""
        owner = row.get("OwnerUserId", "-1")
        if row["PostTypeId"] in ("1", "2") and owner != "-1":
            owners.append(owner)
            bodies.append(row.get("Body", ""))
            topics.append(tag_of[row["Id"]] or tag_of.get(row.get("ParentId", ""), ""))
    if not owners:
        raise InputError(f"{path} has no question or answer with an author: expected a Stack Exchange Posts.xml")
    return owners, bodies, topics


def _pieces(text: list[str], words: int) -> Iterator[list[str]]:
    """``words`` words and the one that follows, one piece after the other."""
    for start in range(0, len(text) - words, words):
        yield text[start:start + words + 1]


def tokens(text: str) -> list[str]:
    """The words of a text, in lower case, and its marks."""
    return _WORD.findall(text.lower())


def _vocabulary(texts: Iterable[list[str]], size: int) -> tuple[str, ...]:
    """Padding, unknown, and the most frequent words; ties in the order of the alphabet."""
    if size < 1:
        raise InputError(f"vocabulary={size} must be at least 1")
    counted = Counter(word for text in texts for word in text)
    return (PAD, UNKNOWN, *sorted(counted, key=lambda w: (-counted[w], w))[:size])


def _encode(texts: list[list[str]], words: int, size: int) -> tuple[NDArray[Any], tuple[str, ...]]:
    """[n, words] numbers of each text's first words, padded in front, and what they stand for."""
    if words < 1:
        raise InputError(f"words={words} must be at least 1")
    known = _vocabulary(texts, size)
    number = {word: i for i, word in enumerate(known)}
    x = np.zeros((len(texts), words), np.int32)
    for row, text in zip(x, texts, strict=True):
        first = [number.get(word, 1) for word in text[:words]]
        row[words - len(first):] = first
    return x, known
