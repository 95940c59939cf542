import json, os, numpy as np, onnxruntime as ort, triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.s = ort.InferenceSession(
            os.path.join(args["model_repository"], args["model_version"], "model.onnx"),
            providers=["CPUExecutionProvider"],
        )

    def execute(self, requests):
        out = []
        for r in requests:
            x = {t.name(): t.as_numpy() for t in r.inputs()}
            y = self.s.run(None, x)
            out.append(pb.InferenceResponse([pb.Tensor(o.name, v) for o, v in zip(self.s.get_outputs(), y)]))
        return out
