"""Tables: reading, columns, encodings."""
