"""The configuration of a run: frozen dataclasses, a sentence under each field."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class RunConfig:
    """The run itself."""

    folder: str = ""
    """Run folder; empty makes `runs/<env>-<command>-<time>`. A folder that holds a checkpoint is resumed."""
    seed: int = 0
    """Everything random in the run is a function of it."""
    deterministic: bool | None = None
    """Fix the order of episodes inside every batch, so that the same seed gives the same run bit for bit.
    Unset: true on a CPU, false elsewhere."""
    checkpoint_every: int = 1
    """Updates between checkpoints."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints are kept."""
    trackers: tuple[str, ...] = ()
    """Where figures go besides the run folder: `tensorboard`, `wandb`, `trackio`; each is installed by its name."""
    note: str = ""
    """Said on screen at the start and in the report: what this recipe changes to fit its machine."""


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, where, and how."""

    id: str = "AgentGym/TextCraft-v0"
    """Gymnasium id; `module:Id` imports the module first."""
    tasks: tuple[str, ...] = ()
    """Train on these tasks of the scenario only, in equal parts by item; empty is all that the id holds."""
    num_envs: int = 64
    """Most episodes in play at once."""
    server: str = ""
    """Address, or several with commas; empty starts local servers."""
    replicas: int = 1
    """How many local server processes."""
    items: str = ""
    """JSON file of item ids that replaces the training split."""
    options: dict[str, Any] = field(default_factory=dict)
    """The scenario's own options."""
    max_error_rate: float = 0.2
    """Share of an update's episodes that may end in an environment error before the run stops."""


@dataclass(frozen=True)
class PolicyConfig:
    """The model that acts and learns."""

    model: str = "smollm2"
    """Hugging Face name or path; or an embedded one: `smollm2` (135M, real), `tiny` (random, for tests)."""
    lora_rank: int = 16
    """Rank of the LoRA adapter on every linear layer; 0 trains all weights."""
    lora_alpha: float = 32.0
    """Scale of the adapter; its updates are multiplied by alpha / rank."""
    dtype: Literal["float32", "bfloat16", "auto"] = "auto"
    """Weights' type; auto is bfloat16 for the frozen base of an adapter on a GPU, and float32 otherwise."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    max_context: int = 2048
    """Most tokens of one episode; an episode without room for a reply ends as length_cut."""


@dataclass(frozen=True)
class AgentConfig:
    """How the policy is turned into an agent."""

    name: Literal["react", "planning", "reflection", "window"] = "react"
    """react: the whole conversation is seen, and each reply holds a thought and one action. planning: a plan is
    written first, at the first observation. reflection: a word on each outcome precedes the next reply. window:
    the first observation and the latest turns are seen, so that episodes may outgrow the context."""
    window: int = 8
    """window: turns after which a new context begins, with the first observation and the last half of them."""
    instruction: Literal["system", "user"] = "user"
    """Which message carries the scenario's instruction: a system message, or the head of the first
    observation."""


@dataclass(frozen=True)
class EngineConfig:
    """What generates the replies."""

    name: Literal["hf", "remote", "api"] = "hf"
    """hf: the policy itself, in this process. remote: a model server that speaks in token ids, such as vLLM, which
    is given the policy's weights. api: any OpenAI-compatible chat endpoint, for evaluation alone."""
    server: str = ""
    """Address of the server with its version, as in `http://127.0.0.1:8000/v1`."""
    model: str = ""
    """Name of the model there; empty is the one that it serves."""
    key: str = "OPENAI_API_KEY"
    """Environment variable that holds the server's key; without it none is sent."""
    deadline: float = 600.0
    """Seconds that one reply may take, its repeats included."""
    attempts: int = 5
    """Most times that a reply is asked for, where the server is busy or cannot be reached."""


@dataclass(frozen=True)
class SamplingConfig:
    """How replies are drawn while training."""

    temperature: float = 1.0
    """Softmax temperature."""
    top_p: float = 1.0
    """Nucleus; 1 keeps the whole distribution."""
    max_new_tokens: int = 64
    """Most tokens of one reply."""


@dataclass(frozen=True)
class HorizonConfig:
    """The turn limit while training (ScalingInter-RL)."""

    schedule: Literal["fixed", "stepwise"] = "fixed"
    """fixed: the last stage throughout. stepwise: the paper's, one stage after the other."""
    stages: tuple[int, ...] = (30,)
    """Turn limits h1 < h2 < ..."""
    every: int = 100
    """Updates per stage; the last stage stays."""


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised fine-tuning on expert episodes before RL; the result is the reference policy of RL."""

    steps: int = 0
    """Most optimizer steps; 0 starts from the model alone, as the paper does."""
    episodes: int = 256
    """Expert episodes to learn from, from the training items."""
    batch_size: int = 8
    """Episodes per step."""
    learning_rate: float = 1e-3
    """AdamW's learning rate."""
    stop_at: float = 0.0
    """Stop once this share of sampled training episodes succeeds (measured every `check_every` steps)."""
    check_every: int = 8
    """Steps between two measurements for `stop_at`."""
    check_episodes: int = 64
    """Episodes of one measurement."""


@dataclass(frozen=True)
class RLConfig:
    """The algorithm and its update."""

    algorithm: Literal["grpo"] = "grpo"
    """Row of the table in `trainers/learning/algorithms.py`."""
    updates: int = 100
    """How many times: collect, then learn."""
    groups: int = 8
    """Items per update."""
    group_size: int = 8
    """Episodes per item."""
    learning_rate: float = 1e-6
    """AdamW's learning rate."""
    warmup_updates: int = 0
    """Updates of linear warm-up of the learning rate."""
    weight_decay: float = 0.0
    """AdamW's weight decay."""
    grad_clip: float = 1.0
    """Largest norm of the gradient."""
    clip_range: float = 0.2
    """PPO's epsilon: the ratio to the behaviour policy is clipped to [1 - eps, 1 + eps]."""
    epochs: int = 1
    """Passes over an update's episodes."""
    minibatches: int = 1
    """Optimizer steps per pass."""
    kl_coef: float = 0.0
    """Weight of the KL term against the reference policy in the loss (k3 estimator)."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    scale_by_std: bool = True
    """GRPO: divide the advantage by the group's standard deviation."""
    tokens_per_batch: int = 4096
    """Token budget of one forward and backward pass."""
    refill_groups: int = 0
    """How many further groups an update may draw to replace those whose rewards are all equal."""


@dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation."""

    tasks: tuple[str, ...] = ()
    """Tasks whose evaluation items are played; empty is all that the id holds."""
    attempts: int = 8
    """Attempts per item at temperature 1; the greedy pass plays each item once."""
    horizon: int = 0
    """Turn limit of evaluation; 0 is the scenario's default."""
    every: int = 0
    """Updates between evaluations during training; 0 evaluates before and after only."""
    limit: int = 0
    """Play only the first so many items; 0 is all."""


@dataclass(frozen=True)
class Config:
    """A whole run."""

    run: RunConfig = field(default_factory=RunConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    horizon: HorizonConfig = field(default_factory=HorizonConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    rl: RLConfig = field(default_factory=RLConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
