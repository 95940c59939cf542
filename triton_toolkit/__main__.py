"""The program ``tt``, also ``python -m triton_toolkit``."""

from __future__ import annotations

from triton_toolkit._interrupts import leave_on_interrupt
from triton_toolkit._stdio import guard_streams


def main() -> None:
    """Run ``tt``; the entry point of the installed command."""
    leave_on_interrupt()  # before click and the commands are imported
    guard_streams()
    from triton_toolkit import cli

    cli.main()


if __name__ == "__main__":
    main()
