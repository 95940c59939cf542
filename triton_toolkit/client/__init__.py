"""The one seam to a running Triton server: metadata, statistics, control and inference."""
