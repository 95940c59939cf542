"""Models that ``tt.yaml`` at the root of the repository builds: read them side by side with it."""
