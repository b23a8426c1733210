"""Training and evaluation: recipes as data, exact resume, one process or many."""
