"""The settings that training and evaluation share: the model, the agent, the sandbox."""

from typing import Literal

import chz

from termrl.config.bounds import ContradictionError, above_zero, at_least


@chz.chz
class RolloutConfig:
    """What every rollout is told, in training and in evaluation: the model, the agent, the sandbox."""

    run_name: str | None = chz.field(default=None, doc="name of the run; none = made from the date")
    run_root: str = chz.field(default="./runs", doc="directory that holds the runs")
    behavior_if_run_exists: Literal["resume", "new", "ask", "error"] = chz.field(
        default="resume", doc="when the run exists: go on with it, take a new name, ask, or refuse"
    )
    seed: int = chz.field(default=0, doc="seed of everything that is drawn at random")
    log_level: Literal["debug", "info", "warning", "error"] = chz.field(
        default="warning", doc="how much the libraries underneath may log"
    )
    model_name: str = chz.field(
        default="termrl/tiny", doc="model to train: a name the server knows, or a model directory"
    )
    base_url: str | None = chz.field(
        default=None, doc="Tinker or a compatible server; none = the embedded engine on this machine"
    )
    context_limit: int | None = chz.field(
        default=None, doc="tokens of context to use at most; none = what the model has"
    )
    renderer: str = chz.field(
        default="auto", doc="how messages become tokens: auto = by the model's name, or a family's name"
    )
    keep_thinking: bool | None = chz.field(
        default=None,
        doc="keep earlier thoughts in the prompt; none = yes in training, as the family has it in evaluation",
    )
    agent: str = chz.field(
        default="terminus-2",
        doc="loop that turns answers into actions: terminus-2, bash, a Harbor agent's name, or module:Class",
    )
    early_return: bool | None = chz.field(
        default=None,
        doc="end a command's wait once it is done and the screen still; none = in training only",
    )
    gateway_url: str | None = chz.field(
        default=None, doc="address that leads to gateway_port from where black-box agents run"
    )
    gateway_port: int = chz.field(
        default=0, doc="port on loopback that black-box agents reach the policy by; 0 = any that is free"
    )
    gateway_tunnel: str | None = chz.field(
        default=None, doc="your program that opens a tunnel to {url} and prints its address"
    )
    reward: str | None = chz.field(
        default=None, doc="verifier's reward that counts, or a sum such as 0.7*tests+0.3*style; none = reward"
    )
    reward_fn: str | None = chz.field(
        default=None, doc="grader of your own, module:function, asked with the rollout and its sandbox"
    )
    environment_type: str = chz.field(
        default="local", doc="where sandboxes run: local, or a Harbor environment (docker, daytona, ...)"
    )
    environment_kwargs: tuple[str, ...] | None = chz.field(
        default=None, doc="what the sandbox's backend is told besides, as NAME=VALUE separated by commas"
    )
    base_images: tuple[str, ...] | None = chz.field(
        default=None, doc="local images to use for others, as IMAGE=IMAGE separated by commas"
    )
    sandbox_timeout: int | None = chz.field(
        default=None, doc="seconds a sandbox lives at most; none = what its task's time-outs come to"
    )
    snapshots: bool = chz.field(
        default=True, doc="start sandboxes from snapshots where `termrl snapshot create` made them"
    )
    prewarm: int = chz.field(default=0, doc="sandboxes to keep booted ahead of the demand")
    n_parallel_envs: int = chz.field(default=16, doc="rollouts at the same time")
    max_turns: int = chz.field(default=50, doc="model calls a rollout may make")
    max_tokens: int = chz.field(default=1024, doc="tokens an answer may have")
    temperature: float = chz.field(default=1.0, doc="sampling temperature")
    enable_summarize: bool = chz.field(
        default=True, doc="let the agent summarize its history when the context runs out"
    )
    proactive_summarization_threshold: int | None = chz.field(
        default=None, doc="summarize when fewer tokens of context are left; none = only when they run out"
    )
    on_bad_task: Literal["error", "skip"] = chz.field(
        default="error", doc="what to do about a task that cannot be used: stop, or leave it out and say so"
    )
    quarantine: str = chz.field(
        default="auto",
        doc="tasks to leave out: auto = what `termrl tasks check` found unfit in it, a file, or none",
    )
    keep_trials: Literal["all", "failed", "none"] = chz.field(
        default="none", doc="which of Harbor's trial directories to keep under the run"
    )

    @chz.validate
    def _check_rollouts(self) -> None:
        at_least(1, self, "n_parallel_envs", "max_turns", "max_tokens", "context_limit", "sandbox_timeout")
        at_least(0, self, "seed", "prewarm", "temperature")
        above_zero(self, "proactive_summarization_threshold")
        if self.context_limit is not None and self.max_tokens >= self.context_limit:
            raise ContradictionError(
                f"max_tokens is {self.max_tokens} and context_limit {self.context_limit}: "
                "an answer must leave room for its prompt; lower max_tokens."
            )
        if self.proactive_summarization_threshold is not None and not self.enable_summarize:
            raise ContradictionError(
                "proactive_summarization_threshold is set but enable_summarize is off: "
                "turn it on, or leave the threshold out."
            )
        if self.gateway_url is not None and self.gateway_port == 0:
            raise ContradictionError(
                "gateway_url is set but gateway_port is not: say which port on this machine it leads to."
            )
        if self.gateway_url is not None and self.gateway_tunnel is not None:
            raise ContradictionError("gateway_url and gateway_tunnel say the same twice: leave one out.")
        if self.gateway_url is not None and not self.gateway_url.startswith(("http://", "https://")):
            raise ContradictionError(
                f"gateway_url is '{self.gateway_url}': it must begin with http:// or https://."
            )
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ContradictionError(
                f"base_url is '{self.base_url}': it must begin with http:// or https://."
            )
        if self.run_name is not None and (not self.run_name.strip(". ") or "/" in self.run_name):
            raise ContradictionError(
                f"run_name is '{self.run_name}': a name cannot be empty, be dots, or hold a '/'; "
                "the directory it is made in is run_root."
            )
