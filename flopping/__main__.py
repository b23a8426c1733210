"""`python -m flopping` is the command line."""

from flopping.cli import app

app(prog_name="flopping")
