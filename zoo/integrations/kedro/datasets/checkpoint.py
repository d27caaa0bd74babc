"""A trained model, as a folder that is a checkpoint of the zoo."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path

from parallel.checkpoint import DamagedError, is_complete, verify
from zoo.checkpoint import MANIFEST
from zoo.integrations.kedro.datasets.remote import FilesystemDataset
from zoo.integrations.kedro.trained import TrainedModel
from zoo_datasets.errors import InputError


class CheckpointDataset(FilesystemDataset[TrainedModel, TrainedModel]):
    """Saves the checkpoint of a trained model, whole: weights, options and the state to train on from.

    What it saved is a checkpoint for ``zoo predict`` and ``zoo.load`` as well. A folder whose copying was cut short
    is no version.

    ::

        trained_model:
          type: zoo.integrations.kedro.datasets.CheckpointDataset
          filepath: data/06_models/anomalies
          versioned: true
    """

    def save(self, data: TrainedModel) -> None:
        if not isinstance(data, TrainedModel):
            raise InputError(f"takes what the zoo's train nodes give, not {type(data).__name__}")
        target = self._save_to()
        if self._fs.exists(target):
            self._make_room(target, data)
        files = [path for path in sorted(data.folder.rglob("*")) if path.is_file()]
        for path in sorted(files, key=lambda path: path == data.folder / MANIFEST):  # the manifest last
            copy = f"{target}/{path.relative_to(data.folder).as_posix()}"
            self._fs.makedirs(copy.rpartition("/")[0], exist_ok=True)
            self._fs.put_file(str(path), copy)
        self._fs.invalidate_cache(target)

    def _make_room(self, target: str, data: TrainedModel) -> None:
        """Removes the checkpoint that a new one is to replace, and nothing else."""
        if self._protocol == "file" and Path(target).resolve() == data.folder.resolve():
            raise InputError("the model lies there already")
        if self._is_there(target):
            self._fs.rm(target, recursive=True)
        elif self._fs.ls(target):
            raise InputError(
                f"{target}: is not empty and no complete checkpoint; remove it, or save elsewhere"
            )

    def load(self) -> TrainedModel:
        path = self._load_from()
        if self._protocol == "file":
            return self._model(Path(path), path)
        copy = Path(tempfile.mkdtemp(prefix="zoo-checkpoint-"))
        try:
            self._fs.get(path, str(copy / "checkpoint"), recursive=True)
            model = self._model(copy / "checkpoint", path)
        except BaseException:
            shutil.rmtree(copy)
            raise
        weakref.finalize(model, shutil.rmtree, copy)
        return model

    def _model(self, folder: Path, path: str) -> TrainedModel:
        """The model of a folder on this machine, which the catalog knows by ``path``.

        Raises:
            InputError: it is no checkpoint, or damaged; says what to do then.
        """
        try:
            return TrainedModel(folder)
        except InputError as error:
            said = str(error).replace(str(folder), path)
            try:
                verify(folder)
            except DamagedError:
                if is_complete(folder):
                    said += "; train again" + (
                        ", or load another version with --load-versions" if self._version else ""
                    )
            raise InputError(said) from None

    def _is_there(self, path: str) -> bool:
        return bool(self._fs.exists(f"{path}/{MANIFEST}"))
