"""After the decision: refits, calibration, explanations, predictions and scores for new rows."""
