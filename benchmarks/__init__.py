"""What is true, measured: speed, evaluation, reports."""
