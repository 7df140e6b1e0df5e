"""Messages, their checks, and the files that say what a federation runs; no engine and no rows."""
