"""The trained models of a run, as safetensors files that need no other library to read."""

from pathlib import Path

from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.runs.compared_methods import ComparedMethods
from resolvent.simulator.record.model_folder import write_model_folder

__all__ = ["write_models"]


def write_models(folder: Path, comparison: ComparedMethods) -> None:
    """Write the models of the first seed, each method's into a folder of its label's name, see ``model_folder``."""
    for result in comparison.results.values():
        saved = result.saved_models._replace(parties=comparison.experiment.parties)
        write_model_folder(folder / folder_name(result.name), saved)
