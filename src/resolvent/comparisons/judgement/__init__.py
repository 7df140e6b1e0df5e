"""From measurements to decisions: row values, intervals, gains of sites, convergence."""
