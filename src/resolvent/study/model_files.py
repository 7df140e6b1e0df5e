"""The trained models of a run, as safetensors files that need no other library to read."""

import json
from pathlib import Path

from resolvent.data.atomic_files import write_text
from resolvent.simulate.result import Result
from resolvent.simulate.tree_files import named_leaves, write_tree
from resolvent.study.checks import folder_name
from resolvent.study.compare import Comparison

__all__ = ["write_models"]


def write_models(folder: Path, comparison: Comparison) -> None:
    """Write the models of every method, each into a folder of its label's name.

    ``parties.safetensors`` has the personal models (leaves [N, ...], row k is party k's), ``server.safetensors`` the
    shared model, and ``tree.json`` the names, shapes and dtypes.
    """
    for result in comparison.results.values():
        _write(folder / folder_name(result.name), result, comparison.experiment.parties)


def _write(folder: Path, result: Result, parties: tuple[str, ...]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    personal, shared = result.personal_models, result.server_model
    files = {"parties.safetensors": "the parties' personal models: row k of every tensor belongs to parties[k]"}
    write_tree(folder / "parties.safetensors", personal)
    if shared is not None:
        files["server.safetensors"] = "the shared model"
        write_tree(folder / "server.safetensors", shared)
    leaves = {name: {"shape": list(leaf.shape[1:]), "dtype": str(leaf.dtype)}
              for name, leaf in named_leaves(personal).items()}
    note = {"method": result.name, "round": result.rounds, "parties": list(parties), "leaves": leaves, "files": files}
    write_text(folder / "tree.json", json.dumps(note, indent=1))
