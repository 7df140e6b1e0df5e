"""Hostile input gives an `InputError` or valid data. `hostile` has the cases and can run thousands of them."""

from hostile import run_frames, run_leaf_documents, run_text_tables


def test_mutated_leaf_documents_are_refused_by_file_and_field_or_valid(tmp_path):
    assert run_leaf_documents(200, seed=14, folder=tmp_path) == []


def test_hostile_text_tables_are_refused_or_valid(tmp_path):
    assert run_text_tables(100, seed=14, folder=tmp_path) == []


def test_hostile_frames_are_refused_or_valid(tmp_path):
    assert run_frames(80, seed=14, folder=tmp_path) == []
