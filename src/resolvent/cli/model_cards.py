"""The model card of a run on the command line."""

from pathlib import Path
from typing import Literal

from resolvent.cli import terminal
from resolvent.errors import InputError


def show(action: Literal["card", "verify"], folder: Path, kit: Path | None) -> None:
    """Write the card of a simulated run, or check that of a federated run."""
    from resolvent.federation.lead.model_card import MODEL_CARD, write_model_card
    from resolvent.federation.protocol.cards import check_card
    from resolvent.federation.protocol.kits import KitNote

    if action == "card":
        if (folder / f"{MODEL_CARD}.signature.json").exists():
            raise InputError(f"{folder} has a card that its lead has signed: check it with federation verify")
        terminal.print_path("Model card", write_model_card(folder))
        return
    if kit is None:
        raise InputError("federation verify needs --kit, the kit of any participant of the federation")
    lead, card = check_card(folder, MODEL_CARD, KitNote(kit).verify)
    terminal.print_line(f"{lead} has signed this card of the run {card['run']}, with the plan "
                        f"{card['plan']['digest']}; the card and {len(card['files'])} files of the run are unchanged")
