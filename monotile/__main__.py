"""python -m monotile: the command line."""

from monotile.cli.main import main

main()
