"""`python -m flopping` is the command line."""

from flopping_cli import app

app(prog_name="flopping")
