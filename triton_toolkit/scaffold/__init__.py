"""What ``tt init`` writes: a commented ``tt.yaml``, from nothing, an ONNX file or a PyTorch factory."""
