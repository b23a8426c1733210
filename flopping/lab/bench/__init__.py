"""Measurements: how much work things are, and how long they take against something else in the same run."""
