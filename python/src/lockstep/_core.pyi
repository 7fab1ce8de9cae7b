from typing import Any

class Suggestion:
    def to_dict(self) -> dict[str, Any]: ...
    def job_yaml(self) -> str: ...
    def torchrun(self) -> str: ...
    def deepspeed(self) -> dict[str, Any]: ...
    def accelerate(self) -> str: ...

def suggest(
    *,
    model_size: str,
    model: str,
    gpus: str,
    dataset_size: str,
    gpu: str,
    gpus_per_node: int,
    cluster: str,
    sequence_length: int,
    global_batch: int,
    epochs: float,
    host_cores: int,
    task: str,
    stack: str,
    profile: str,
    home: str,
) -> Suggestion: ...
def plan(*, model: str, cluster: str, sequence_length: int, global_batch: int, tokens: float, profile: str) -> dict[str, Any]: ...
def home_directory() -> str: ...
