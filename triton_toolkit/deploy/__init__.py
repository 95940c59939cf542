"""Put built models on a Triton host as one transaction, and tell what is there."""
