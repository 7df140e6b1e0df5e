"""Text data sets: their tokens and labels, and files that are refused because they are damaged."""

import gzip
import json

import numpy as np
import pytest

from resolvent import datasets
from resolvent.data.files import data_files as files
from resolvent.data.images_text.formats import iterate_xml_rows
from resolvent.data.images_text.tokens import CHARACTERS
from resolvent.data.partition.partitions import ByUser
from resolvent.errors import InputError

SPEECHES = [("Hamlet", "HAMLET", "To be, or not to be"), ("Hamlet", "GHOST", "Adieu, adieu! Hamlet, remember me."),
            ("Hamlet", "HAMLET", "O all you host of heaven!"), ("Lear", "FOOL", "Nuncle")]


def test_shakespeare_predicts_the_next_character_of_a_role(data_folder):
    (data_folder / "shakespeare").mkdir()
    lines = [json.dumps({"play": p, "role": r, "text": t}) for p, r, t in SPEECHES]
    (data_folder / "shakespeare/plays_by_role.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    data = datasets.shakespeare(length=10, test=0)
    assert data.parties == ("Hamlet: GHOST", "Hamlet: HAMLET")  # the fool speaks fewer than 10 characters
    text = "\n".join(t for _, r, t in SPEECHES if r == "HAMLET")
    windows = sorted((text[i:i + 10], text[i + 10]) for i in range(len(text) - 10))
    assert windows == sorted(("".join(CHARACTERS[i] for i in x), data.classes[y])
                             for x, y in zip(*data.party("Hamlet: HAMLET"), strict=True))
    assert datasets.shakespeare(length=10, stride=3, max_samples=4, test=0).sizes().tolist() == [4, 4]
    (data_folder / "tiny.txt").write_text("First Citizen:\nBefore we proceed any further\n\nAll:\nSpeak, speak.\n")
    assert datasets.shakespeare(file="tiny.txt", length=5, test=0).parties == ("All", "First Citizen")
    (data_folder / "cut.jsonl").write_text(lines[0] + "\n" + lines[1][:30])
    with pytest.raises(InputError, match=r"cut.jsonl, line 2 is cut off, or is not a JSON object"):
        datasets.shakespeare(file="cut.jsonl")
    with pytest.raises(InputError, match=r"no role of tiny.txt speaks more than 80 characters"):
        datasets.shakespeare(file="tiny.txt")


def test_sentiment_counts_words_and_pads_in_front(data_folder):
    (data_folder / "s.csv").write_text(
        'user_id,polarity,text\n7,neg,"I don\'t like it, at all"\n7,pos,Great :)\n8,pos,It is it\n')
    data = datasets.sentiment(file="s.csv", words=4, partition=ByUser(), test=0)
    assert (data.parties, data.classes) == (("7", "8"), ("neg", "pos"))
    assert data.vocabulary[:4] == ("<pad>", "<unknown>", "it", ":)")  # the most frequent first, then the alphabet
    class_of = {tuple(data.vocabulary[i] for i in x): data.classes[y] for x, y in zip(data.x, data.y, strict=True)}
    assert class_of == {("i", "don't", "like", "it"): "neg", ("<pad>", "<pad>", "great", ":)"): "pos",
                        ("<pad>", "it", "is", "it"): "pos"}
    few = datasets.sentiment(file="s.csv", words=4, vocabulary=1, partition=ByUser(), test=0)
    assert few.vocabulary == ("<pad>", "<unknown>", "it")
    (data_folder / "s140.csv").write_bytes(
        '"0","1","Mon","NO_QUERY","ann","café is bad"\n"4","2","Mon","NO_QUERY","bob","good"\n'.encode("latin-1"))
    assert datasets.sentiment(file="s140.csv", partition=ByUser(), test=0).parties == ("ann", "bob")
    for change, message in [({"user": "userid"}, r"no column 'userid': .* did you mean 'user_id'"),
                            ({"classes": ["neg", "poss"]}, r"polarity 'poss': .* did you mean 'pos'"),
                            ({"classes": ["neg"]}, r"nothing to learn")]:
        with pytest.raises(InputError, match=message):
            datasets.sentiment(file="s.csv", **change)
    (data_folder / "s.csv").write_text("user_id,polarity,text\n7,neg,fine\n8,pos")
    with pytest.raises(InputError, match=r"s.csv, message 2: the text is missing: .*cut off"):
        datasets.sentiment(file="s.csv")


POSTS = """<?xml version="1.0" encoding="utf-8"?>
<posts>
  <row Id="1" PostTypeId="1" OwnerUserId="5" Tags="&lt;wallet&gt;&lt;api&gt;"
    Body="&lt;p&gt;One two three four &amp;amp; five&lt;/p&gt;" />
  <row Id="2" PostTypeId="2" ParentId="1" OwnerUserId="6" Body="six one two" />
  <row Id="3" PostTypeId="1" OwnerUserId="-1" Tags="&lt;api&gt;" Body="the site itself" />
  <row Id="4" PostTypeId="1" OwnerUserId="6" Tags="|api|" Body="two one two" />
  <row Id="5" PostTypeId="6" OwnerUserId="6" Body="an election" />
</posts>"""


def test_stack_exchange_posts_by_author(data_folder):
    (data_folder / "Posts.xml.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + POSTS.encode()))
    data = datasets.stackexchange(file="Posts.xml", words=2, partition=ByUser(), test=0)
    pieces = [(data.parties[k], *(data.vocabulary[i] for i in x), data.classes[y])
              for k in range(len(data)) for x, y in zip(*data.party(k), strict=True)]
    assert sorted(pieces) == [("5", "one", "two", "three"), ("5", "three", "four", "five"),
                              ("6", "six", "one", "two"), ("6", "two", "one", "two")]
    tags = datasets.stackexchange(file="Posts.xml", target="tag", vocabulary=2, partition=ByUser(), test=0)
    assert tags.classes == ("wallet", "api")  # an answer has its question's first tag
    assert sorted(tags.classes[y] for y in tags.party("6")[1]) == ["api", "wallet"]
    assert tags.features == ("<pad>", "<unknown>", "two", "one")
    np.testing.assert_allclose(tags.party("5")[0], [[0, 0.6, 0.2, 0.2]])
    for content, message in [(POSTS[:300], "cut off or not an XML dump"), ("<posts></posts>", "no question or answer"),
                             ('<users><row Id="1" Age="3" /></users>', "not a Stack Exchange Posts.xml: a row")]:
        (data_folder / "bad.xml").write_text(content)
        with pytest.raises(InputError, match=message):
            datasets.stackexchange(file="bad.xml")


@pytest.mark.when_changed
def test_the_real_texts_have_the_counts_of_their_description(real_data):
    data = datasets.stackexchange(file="stackexchange/cardano_stackexchange_Posts.xml", target="tag")
    assert set(data.parties) <= {r.get("OwnerUserId") for r in iterate_xml_rows(
        files.find("stackexchange/cardano_stackexchange_Posts.xml"))}
    airlines = datasets.sentiment(file="sentiment/airline_tweets.csv", user="airline", label="sentiment",
                                  partition=ByUser(), test=0)
    assert dict(zip(airlines.parties, airlines.sizes(), strict=True)) == {
        "American": 2759, "Delta": 2222, "Southwest": 2420, "US Airways": 2913, "United": 3822, "Virgin America": 504}
    assert np.bincount(airlines.y).tolist() == [9178, 3099, 2363]
    plays = datasets.shakespeare(partition=ByUser(min_samples=161 - 80), stride=1, max_samples=81, test=0)
    assert len(plays) == 1054 - _roles_of_160_characters()


def _roles_of_160_characters():
    """The number of roles with exactly 160 characters: they have 80 windows, one fewer than the minimum."""
    speeches = {}
    for line in files.read(files.find("shakespeare/plays_by_role.jsonl")).decode().splitlines():
        speech = json.loads(line)
        speeches.setdefault((speech["play"], speech["role"]), []).append(speech["text"])
    return sum(len("\n".join(t)) == 160 for t in speeches.values())
