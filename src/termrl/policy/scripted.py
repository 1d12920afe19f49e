"""A policy that reads its answers from a script: demonstrations, and tests about something else."""

from collections.abc import Sequence

from termrl.policy.rendering import Renderer
from termrl.policy.sampler import ModelUnavailableError, SampledAnswer
from termrl.policy.tokenizer import Tokenizer


class ScriptedSampler:
    """Gives the answers in order, one a call, as the model would have sampled them.

    An answer is its text's tokens and the stop token, all with logprob 0; one longer than `max_tokens`
    is cut there, as a model's would be. With `repeat_last` the last answer is given for ever.
    """

    def __init__(
        self,
        answers: Sequence[str],
        tokenizer: Tokenizer,
        renderer: Renderer,
        *,
        repeat_last: bool = False,
        policy_version: int = 0,
    ) -> None:
        self._script = list(answers)
        self._tokenizer = tokenizer
        self._renderer = renderer
        stop = renderer.get_stop_token_ids()[0]
        self._answers = [(*tokenizer.encode(text, add_special_tokens=False), stop) for text in answers]
        self._repeat_last = repeat_last
        self._policy_version = policy_version
        self._calls = 0

    @property
    def policy_version(self) -> int:
        return self._policy_version

    def for_attempt(self) -> "ScriptedSampler":
        """The same script, from its beginning."""
        return ScriptedSampler(
            self._script,
            self._tokenizer,
            self._renderer,
            repeat_last=self._repeat_last,
            policy_version=self._policy_version,
        )

    async def sample(self, prompt: Sequence[int], max_tokens: int, seed: int) -> SampledAnswer:
        call = self._calls
        self._calls += 1
        if call >= len(self._answers):
            if not self._repeat_last or not self._answers:
                raise ModelUnavailableError(
                    f"the script has {len(self._answers)} answers, none for call {call + 1}"
                )
            call = len(self._answers) - 1
        tokens = self._answers[call][:max_tokens]
        stopped = len(tokens) == len(self._answers[call])
        return SampledAnswer(tokens, (0.0,) * len(tokens), "stop" if stopped else "length", 0.0)
