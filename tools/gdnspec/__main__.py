"""python -m gdnspec: the command, where its script is not on PATH."""

from gdnspec.cli.main import main

main()
