"""Measurements: how long things take, always against something else in the same run."""
