from dataclasses import replace

from triton_toolkit.export.job import ExportJob, ExportReport


def test_a_job_survives_json(project):
    job = project.job(
        sample="nets:sample",
        outputs={"y": ("fp32", ["batch", 3]), "z": (None, None)},
        metric="nets:metric",
        max_absolute_drop=0.5,
        ignored=("served",),
        hashed=("w.bin",),
        batch_dim="batch",
        name="net",
    )
    assert ExportJob.from_json(job.to_json()) == replace(
        job, outputs={"y": ("fp32", ["batch", 3]), "z": (None, None)}
    )


def test_a_report_survives_json(project):
    report = ExportReport(
        inputs=(project.tensor("x", "batch", 4),),
        outputs=(project.tensor("y", "batch", dtype="bool"),),
        dims=project.dims(batch=(1, 2, 3)),
        onnx={"opset": {"": 18}, "ir_version": 8},
        parity=[{"sizes": {"batch": 1}, "outputs": []}],
        notes=("one",),
        log="text",
    )
    assert ExportReport.from_dict(report.as_dict()) == report
