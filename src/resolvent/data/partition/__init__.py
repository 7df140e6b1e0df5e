"""Distribution of samples over parties, splits, and shifts of features."""
