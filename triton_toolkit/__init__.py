"""From a PyTorch model to a proven NVIDIA Triton deployment.

The command is ``tt``. This module imports nothing heavy: every stage imports what it
needs inside the function that needs it.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
