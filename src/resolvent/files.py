"""Files: found in the folders of data, read record by record, written completely or not at all, sealed by a digest."""

from resolvent.data.files.atomic_files import remove_folder, write_atomically, write_text
from resolvent.data.files.digests import read_sealed, seal, write_sealed
from resolvent.tables.text_tables import text_records

__all__ = ["read_sealed", "remove_folder", "seal", "text_records", "write_atomically", "write_sealed", "write_text"]
