"""What a paper needs from comparisons: differences, ranks, costs, figures, tables; several data sets in one study."""
