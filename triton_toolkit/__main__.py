"""Run the command line as ``python -m triton_toolkit``."""

from triton_toolkit.cli import main

if __name__ == "__main__":
    main()
