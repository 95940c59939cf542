"""Recipes for models that come as files: a Python model, and a model folder adopted as it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from triton_toolkit._files import canonical_json, hash_tree, sha256_bytes, sha256_file, write_text
from triton_toolkit._progress import Progress
from triton_toolkit.build.configure import render
from triton_toolkit.build.recipe import Context, Made, environment_key, spec_hash, tool_versions
from triton_toolkit.build.samples import Tensors, load_sample
from triton_toolkit.build.tree import check_tree, ignored_names
from triton_toolkit.config.message import format_config, load_config
from triton_toolkit.config.rules import Severity, check_config
from triton_toolkit.core.dims import dims_to_json
from triton_toolkit.core.tensors import DataType, TensorSpec
from triton_toolkit.errors import SpecError
from triton_toolkit.repository.layout import (
    CONFIG_NAME,
    PASSPORT_NAME,
    SAMPLES_NAME,
    latest_version,
    versions,
)
from triton_toolkit.repository.passport import Passport

if TYPE_CHECKING:
    from tritonclient.grpc.model_config_pb2 import ModelConfig

    from triton_toolkit.spec.models import PrebuiltModel, PythonModel

_REQUIREMENTS = "requirements.txt"


def _tree_hash(folder: Path) -> str:
    """Return one hash over the files that are taken along, names included."""
    files = {
        name: sha
        for name, sha in hash_tree(folder).items()
        if not any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))
    }
    return sha256_bytes(canonical_json(files).encode())


class PythonRecipe:
    """Copies a folder with ``model.py`` and its assets; golden outputs come from the embedded server."""

    backend = "python"
    variant = ""
    measured = False

    def __init__(self, context: Context, name: str, model: PythonModel) -> None:
        self.name = name
        self._context = context
        self._model = model
        self._source = context.project.root / model.files
        at = ("models", name, "files")
        if not self._source.is_dir():
            raise context.project.error(at, f"no such folder: {model.files}")
        written = [context.project.root / folder for folder in context.ignored]
        check_tree(
            self._source,
            written,
            lambda message, hint: context.project.error(at, f"{model.files}: {message}", hint),
        )
        file = str(model.serve.get("default_model_filename", "model.py"))
        for reserved in (PASSPORT_NAME, SAMPLES_NAME):
            if (self._source / reserved).exists():
                raise context.project.error(
                    at, f"{model.files} has a {reserved}, a name that tt uses in version folders", "rename it"
                )
        if not (self._source / file).is_file():  # where it is missing, Triton 2.51 loads for ever
            hint = f"Triton's Python backend loads {file} with a class TritonPythonModel"
            raise context.project.error(at, f"{model.files} has no {file}", hint)

    def key(self) -> dict[str, str]:
        """Return the spec part and the folder's content."""
        return {
            "spec": spec_hash(self._model),
            "serve.parameters": self._hash_of_serve("parameters"),  # the model reads them
            "serve.default_model_filename": self._hash_of_serve("default_model_filename"),
            f"files {self._model.files}": _tree_hash(self._source),
            **tool_versions("triton-toolkit"),
            **environment_key(self._context, self._model),
        }

    def _hash_of_serve(self, key: str) -> str:
        return sha256_bytes(canonical_json(self._model.serve.get(key)).encode())

    def make(self, folder: Path, progress: Progress) -> Made:
        """Copy the folder, write the requirements, and produce the sample inputs."""
        progress.step(self.name, f"copying {self._model.files}")
        shutil.copytree(self._source, folder, ignore=ignored_names, dirs_exist_ok=True)
        if self._model.requirements:
            write_text(folder / _REQUIREMENTS, "".join(f"{line}\n" for line in self._model.requirements))
        inputs = tuple(entry.tensor(name) for name, entry in self._model.inputs.items())
        outputs = tuple(
            TensorSpec(name=name, dtype=DataType.parse(entry.dtype or ""), shape=tuple(entry.shape or ()))
            for name, entry in self._model.outputs.items()
        )
        dims = dims_to_json({name: entry.dim(name) for name, entry in self._model.dims.items()})
        tensors = Tensors(inputs=inputs, dims=dims, batch_dim=self._model.batch_dim)
        sample = load_sample(self._context, self.name, self._model.sample, tensors, progress)
        return Made(
            inputs=inputs,
            outputs=outputs,
            batch_dim=self._model.batch_dim,
            dims=dims,
            dependencies=sample.dependencies,
            sample_inputs=sample.inputs,
        )

    def config(self, passport: Passport) -> str:
        """Render the config from the passport and ``serve:``."""
        return render(self._context, passport, self._model.serve)

    def beside_config(self) -> Iterator[tuple[str, Path]]:
        """Yield nothing: the assets lie in the version folder."""
        return iter(())


class PrebuiltRecipe:
    """Adopts the latest version of an existing model folder, its config unchanged but for the name."""

    variant = ""
    measured = False

    def __init__(self, context: Context, name: str, model: PrebuiltModel) -> None:
        self.name = name
        self._context = context
        self._model = model
        self._source = context.project.root / model.path
        self._config = self._read_config()
        check_tree(self._source, (), lambda message, hint: self._error(f"{model.path}: {message}", hint))
        self.backend = self._config.backend
        self._version = self._latest()

    def _error(self, message: str, hint: str = "") -> SpecError:
        return self._context.project.error(("models", self.name, "path"), message, hint)

    def _read_config(self) -> ModelConfig:
        path = self._source / CONFIG_NAME
        if not path.is_file():
            raise self._error(
                f"{self._model.path} has no {CONFIG_NAME}",
                "a prebuilt model is a folder with config.pbtxt and numbered version folders",
            )
        config = load_config(path, f"{self._model.path}/{CONFIG_NAME}")
        for finding in check_config(config):
            if finding.severity is Severity.ERROR:
                raise self._error(f"{CONFIG_NAME}: {finding}", finding.hint)
        return config

    def _latest(self) -> int:
        version = latest_version(self._source)
        if version is None:
            raise self._error(f"{self._model.path} has no version folder (1, 2, …)")
        return version

    def key(self) -> dict[str, str]:
        """Return the spec part, the config, and the content of the adopted version."""
        return {
            "spec": spec_hash(self._model),
            "prebuilt config": sha256_file(self._source / CONFIG_NAME),
            f"prebuilt version {self._version}": _tree_hash(self._source / str(self._version)),
            **{f"prebuilt file {name}": sha256_file(path) for name, path in self.beside_config()},
            **environment_key(self._context, self._model),
        }

    def make(self, folder: Path, progress: Progress) -> Made:
        """Copy the version's files; passports and samples of another build are not taken along."""
        progress.step(self.name, f"adopting {self._model.path} version {self._version}")
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", PASSPORT_NAME, SAMPLES_NAME)
        shutil.copytree(self._source / str(self._version), folder, ignore=ignored, dirs_exist_ok=True)
        config = self._config
        batch = "batch" if config.max_batch_size > 0 else None
        inputs = tuple(_tensor(entry.name, entry.data_type, entry.dims, batch) for entry in config.input)
        outputs = tuple(_tensor(entry.name, entry.data_type, entry.dims, batch) for entry in config.output)
        dims = {batch: [1, config.max_batch_size, config.max_batch_size]} if batch else {}
        tensors = Tensors(inputs=inputs, dims=dims, batch_dim=batch)
        sample = load_sample(self._context, self.name, self._model.sample, tensors, progress)
        return Made(
            inputs=inputs,
            outputs=outputs,
            batch_dim=batch,
            dims=dims,
            dependencies=sample.dependencies,
            sample_inputs=sample.inputs,
        )

    def config(self, passport: Passport) -> str:
        """Return the config as it is; reformatted only where its name must become this model's."""
        if self._config.name in ("", self.name):
            return (self._source / CONFIG_NAME).read_text(encoding="utf-8")
        renamed = type(self._config)()
        renamed.CopyFrom(self._config)
        renamed.name = self.name
        return format_config(renamed)

    def beside_config(self) -> Iterator[tuple[str, Path]]:
        """Yield label files, warm-up data and the like: all that is neither config nor version."""
        numbers = {str(version) for version in versions(self._source)}
        for path in sorted(self._source.rglob("*")):
            name = path.relative_to(self._source).as_posix()
            top = name.partition("/")[0]
            if path.is_file() and top != CONFIG_NAME and top not in numbers and not top.startswith("."):
                yield name, path


def _tensor(name: str, data_type: int, dims: Iterator[int], batch: str | None) -> TensorSpec:
    """Return a config's input or output with its batch dimension and its dynamic dimensions named."""
    from tritonclient.grpc import model_config_pb2

    shape = [f"{name}_{axis}" if size < 0 else int(size) for axis, size in enumerate(dims)]
    dtype = DataType.parse(model_config_pb2.DataType.Name(data_type))
    return TensorSpec(name=name, dtype=dtype, shape=(batch, *shape) if batch else tuple(shape))
