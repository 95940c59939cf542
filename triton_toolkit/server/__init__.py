"""The real Triton server, embedded: found, started, watched and ended from Python, without a container."""
