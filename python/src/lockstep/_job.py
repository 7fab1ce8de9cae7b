"""What `lockstep.train` hands to the executable: a job file, and files of what was given as objects."""

from __future__ import annotations

import json
import os
import pathlib
import warnings
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from . import _tensors
from .errors import SpecError

Job = Union[str, "os.PathLike[str]", Mapping[str, Any]]
Overrides = Union[Mapping[str, Any], Sequence[str], None]

_SCRIPTED = (".pt", ".pth", ".ts", ".torchscript")


class Request:
    """The words behind `lockstep train`; files that it needs lie in `folder`, which is made where it is missing."""

    def __init__(self, job: Job, folder: pathlib.Path, overrides: Overrides = None, resumes: bool = False) -> None:
        self._folder = folder
        self._resumes = resumes  # a module that was written there begins with the weights it had then
        self.sections: Dict[str, Any] = {}
        self.overrides = _words(overrides)
        self.file: Optional[pathlib.Path] = None
        if isinstance(job, Mapping):
            self.sections.update(job)
        elif isinstance(job, (str, os.PathLike)):
            self.file = pathlib.Path(job)
        else:
            raise SpecError(f"a job is a file or a dict, not {_kind_of(job)}; see docs/reference/job-file.md")

    @property
    def steps(self) -> Optional[int]:
        """How many there will be, where the job as it was given says so."""
        value = self.sections.get("steps")
        for word in self.overrides:
            if word.startswith("steps="):
                value = word[len("steps="):]
        try:
            return None if value is None else int(float(value))
        except (TypeError, ValueError):
            return None

    def set_model(self, model: Any, loss: Optional[str]) -> None:
        if model is None:
            if loss is not None:
                raise SpecError("loss= goes with model=MODULE; models of the zoo have their own")
            return
        if isinstance(model, Mapping) or (isinstance(model, (str, os.PathLike)) and not _is_scripted_file(model)):
            if loss is not None:
                raise SpecError("loss= goes with a module; models of the zoo have their own")
            self.sections["model"] = os.fspath(model) if isinstance(model, os.PathLike) else model
            return
        file = pathlib.Path(model).resolve() if isinstance(model, (str, os.PathLike)) else self._script(model)
        if loss is None:
            raise SpecError("a module of your own needs its loss: loss='cross_entropy'")
        self.sections["model"] = {"torchscript": str(file), "loss": loss}

    def set_data(self, data: Any) -> None:
        if data is None:
            return
        if isinstance(data, Mapping) and "kind" in data:
            self.sections["data"] = dict(data)
        elif isinstance(data, (str, os.PathLike)):
            self._set_data_path(os.fspath(data))
        else:
            tensors = _tensors.from_data(data)
            names = list(tensors)
            _tensors.write_safetensors(self._made("data.safetensors"), tensors)
            self.sections["data"] = {"kind": "tensors", "path": str(self._made("data.safetensors")),
                                     "inputs": names[:-1], "target": names[-1]}

    def words(self) -> List[str]:
        """The job file and its overrides. Sections go over as overrides too: their paths start from the working folder,
        and what is wrong in them is told with their own words instead of a place in a file that nobody wrote."""
        as_words = [f"{key}={_text(value)}" for key, value in self.sections.items()]
        if self.file is None:
            name = self.sections.get("name")
            self.file = self._made(f"{name if isinstance(name, str) and name.isidentifier() else 'job'}.yaml")
            self.file.write_text(json.dumps(self.sections, indent=2, default=_plain) + "\n", encoding="utf-8")
        return [str(self.file), *as_words, *self.overrides]

    def _set_data_path(self, path: str) -> None:
        section = self.sections.get("data")
        if isinstance(section, Mapping):
            self.sections["data"] = {**section, "path": path}
        elif self.file is not None:
            self.overrides.append(f"data.path={_text(path)}")
        else:
            raise SpecError(f"data={path} needs its kind; write data={{'kind': 'text', 'path': {path!r}}}")

    def _script(self, module: Any) -> pathlib.Path:
        try:
            import torch
        except ImportError as problem:
            raise SpecError(f"model={_kind_of(module)} is no file, and torch is not installed ({problem}); give a preset, "
                            "a model file, or the path of a scripted module") from None
        if not isinstance(module, torch.nn.Module):
            raise SpecError(f"a model is a torch module, a scripted file, a preset or a map, not {_kind_of(module)}")
        file = self._made("model.pt")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                if self._resumes and file.exists():
                    _require_same_shapes(torch.jit.load(str(file)), module, file)
                    return file
                scripted = module if isinstance(module, torch.jit.ScriptModule) else torch.jit.script(module)
                scripted.save(str(file))
        except SpecError:
            raise
        except Exception as problem:  # noqa: BLE001 - torch raises many kinds
            lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
            place = next((line for line in lines if line.startswith("File ")), "")  # of the user's source
            reason = lines[0].rstrip(":") + (f" ({place.rstrip(':')})" if place else "")
            raise SpecError(f"torch.jit.script cannot compile {type(module).__name__}: {reason}; write that part "
                            "otherwise, or give torch.jit.trace(module, example)") from problem
        return file

    def _made(self, name: str) -> pathlib.Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder.resolve() / name


def _is_scripted_file(model: Any) -> bool:
    return pathlib.Path(model).suffix in _SCRIPTED


def _require_same_shapes(before: Any, now: Any, file: pathlib.Path) -> None:
    old = {name: tuple(value.shape) for name, value in before.state_dict().items()}
    new = {name: tuple(value.shape) for name, value in now.state_dict().items()}
    if old != new:
        other = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        raise SpecError(f"resume: {file} holds another module, which differs in {other[0]}; give its folder, or begin anew "
                        "without resume")


def _kind_of(value: Any) -> str:
    return type(value).__name__


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "item"):  # a number of NumPy
        return value.item()
    raise SpecError(f"a job holds numbers, texts, lists and maps, not {_kind_of(value)}")


def _text(value: Any) -> str:
    """JSON is YAML."""
    return json.dumps(value, default=_plain)


def _words(overrides: Overrides) -> List[str]:
    if overrides is None:
        return []
    if isinstance(overrides, Mapping):
        return [f"{key}={_text(value)}" for key, value in overrides.items()]
    if isinstance(overrides, str):
        raise SpecError("overrides are a dict or a list: overrides={'batch.micro': 8}")
    return [str(word) for word in overrides]


__all__ = ["Job", "Overrides", "Request"]
