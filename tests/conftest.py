"""Shared settings: hypothesis without deadlines (the machine is shared) and the same examples every time."""

from hypothesis import settings

settings.register_profile("flopping", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("flopping")
