"""The spec: what the user writes in ``tt.yaml``, validated, with the line of every key."""
