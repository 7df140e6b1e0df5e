"""The table that begins a paper: the rows of all sites, described without small cells."""
