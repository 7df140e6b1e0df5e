"""The trained models of a run, as safetensors files that need no other library to read."""

from pathlib import Path

from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.runs.compared_methods import ComparedMethods
from resolvent.simulator.record.model_folder import write_model_folder


def write_models(folder: Path, comparison: ComparedMethods) -> None:
    """Write the models of the first seed, each method's into a folder of its label's name, see ``model_folder``.

    The models of the second fold and the later ones are in folders inside it.
    """
    for label, result in comparison.results.items():
        for fold, saved in enumerate((result.saved_models, *comparison.fold_models.get(label, ()))):
            write_model_folder(fold_folder(folder / folder_name(result.name), fold),
                               saved._replace(parties=comparison.experiment.parties))


def fold_folder(folder: Path, fold: int) -> Path:
    """The folder of a method's models of one fold, from that of its models."""
    return folder / f"fold-{fold + 1}" if fold else folder
