"""From a PyTorch model or an ONNX file to a proven ``model.onnx`` with golden samples.

``run.run_export`` is the entrance; everything else runs in a child process (``worker``).
"""
