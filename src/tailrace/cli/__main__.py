"""``python -m tailrace.cli``: the same as the ``tailrace`` program."""

from tailrace.cli import main

main()
