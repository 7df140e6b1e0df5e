"""What a person does with it: experiment files, comparisons, run folders, reports."""
