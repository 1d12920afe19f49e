"""What one sees of a task at a glance: how hard, what it asks for, how big it is."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from termrl.tasks.task import HarborTask

_DOCKERFILE = "environment/Dockerfile"


@dataclass(frozen=True, slots=True)
class Overview:
    task_name: str
    difficulty: str
    category: str
    agent_timeout_sec: float | None
    verifier_timeout_sec: float
    build_timeout_sec: float
    cpus: int | None
    memory_mb: int | None
    storage_mb: int | None
    gpus: int | None
    image: str
    network: str
    files: int
    size: int
    task_dir: str
    instruction: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def cells(self) -> list[str]:
        """The row of a table: name, difficulty, category, time-outs, resources, image, network, size."""
        agent = "-" if self.agent_timeout_sec is None else f"{self.agent_timeout_sec:g} s"
        return [
            self.task_name,
            self.difficulty or "-",
            self.category or "-",
            agent,
            f"{self.verifier_timeout_sec:g} s",
            self.resources,
            self.image,
            self.network,
            human_size(self.size),
        ]

    @property
    def resources(self) -> str:
        parts = {"cpu": self.cpus, "MB": self.memory_mb, "MB disk": self.storage_mb, "gpu": self.gpus}
        return " ".join(f"{count} {what}" for what, count in parts.items() if count) or "-"


def overview(task: HarborTask) -> Overview:
    """Read off a loaded task; nothing but its Dockerfile's first line is read anew."""
    config = task.config
    contents = task.contents
    return Overview(
        task_name=task.task_name,
        difficulty=_text(config.metadata, "difficulty"),
        category=_text(config.metadata, "category", "family"),
        agent_timeout_sec=config.agent.timeout_sec,
        verifier_timeout_sec=config.verifier.timeout_sec,
        build_timeout_sec=config.environment.build_timeout_sec,
        cpus=config.environment.cpus,
        memory_mb=config.environment.memory_mb,
        storage_mb=config.environment.storage_mb,
        gpus=config.environment.gpus,
        image=config.environment.docker_image or _base_image(task),
        network=_network(task),
        files=contents.files if contents else 0,
        size=contents.size if contents else 0,
        task_dir=str(task.task_dir),
        instruction=task.instruction,
    )


def human_size(size: int) -> str:
    for unit, bytes_in_it in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= bytes_in_it:
            return f"{size / bytes_in_it:.1f} {unit}"
    return f"{size} B"


def _network(task: HarborTask) -> str:
    environment = task.config.environment
    # A file of before network_mode said it with a word of its own.
    if "network_mode" not in environment.model_fields_set and environment.allow_internet is False:
        return "no-network"
    return environment.network_mode.value


def _base_image(task: HarborTask) -> str:
    path = task.task_dir / _DOCKERFILE
    if not path.is_file():
        return "docker-compose"
    froms = [
        line.split() for line in path.read_text(errors="replace").splitlines() if line.startswith("FROM ")
    ]
    images = [word for word in froms[-1][1:] if not word.startswith("--")] if froms else []
    return images[0] if images else "-"


def _text(metadata: Mapping[str, Any], *names: str) -> str:
    return next((str(metadata[name]) for name in names if metadata.get(name)), "")
