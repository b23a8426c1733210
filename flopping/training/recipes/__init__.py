"""Recipes, as YAML."""
