"""Experiments: many training runs that answer one question, as data, with a report of what came out."""
