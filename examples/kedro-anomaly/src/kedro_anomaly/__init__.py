"""Anomaly detection with the model zoo in a Kedro pipeline."""
