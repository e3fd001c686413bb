"""The configuration of a run: frozen dataclasses, a sentence under each field."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

SAME_SCORE = 1e-6
"""Scores, and advantages, that lie within this of each other are equal but for rounding; where they are divided by
their standard deviation, it is added to that."""

GROUPED = frozenset({"grpo", "rloo"})
"""Algorithms that compare the episodes of one item with each other."""


@dataclass(frozen=True)
class RunConfig:
    """The run itself."""

    folder: str = ""
    """Run folder; empty makes `runs/<env>-<command>-<time>`. A folder that holds a checkpoint is resumed."""
    seed: int = 0
    """Everything random in the run is a function of it."""
    method: Literal["rl", "sft", "dpo", "evolve"] = "rl"
    """What an update is; the section of that name says how many there are, and how each is made. rl: episodes are
    played, and reinforced by their scores. sft: one step of imitation of episodes on file. dpo: one step towards the
    better of two episodes of one item. evolve: episodes are played, and those that went well are imitated."""
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
    """Address, or several with commas; empty starts local servers. The expert always plays on a local one."""
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

    schedule: Literal["fixed", "stepwise", "adaptive"] = "fixed"
    """fixed: the last stage throughout. stepwise: the paper's, one stage after the other. adaptive: the next stage
    begins when the policy has learned what it can within the limit, or is stopped by it."""
    stages: tuple[int, ...] = (30,)
    """Turn limits h1 < h2 < ..."""
    every: int = 100
    """stepwise: updates per stage; the last stage stays. adaptive: updates of a stage before cut episodes end it."""
    window: int = 5
    """adaptive: latest updates of the stage whose mean success and mean share of cut episodes are looked at."""
    raise_at_success: float = 0.5
    """adaptive: the success that ends a stage."""
    raise_at_cut: float = 0.5
    """adaptive: the share of episodes cut by the turn limit that ends a stage, once `every` updates are over."""


@dataclass(frozen=True)
class WarmStartConfig:
    """Supervised fine-tuning on expert episodes first; the result is the reference policy of what follows."""

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


Reward = Literal["score", "success"]


@dataclass(frozen=True)
class RLConfig:
    """The algorithm and its update."""

    algorithm: Literal["grpo", "rloo", "reinforce++", "ppo"] = "grpo"
    """Row of the table in `trainers/learning/algorithms.py`."""
    reward: Reward = "score"
    """What an episode is worth: its score, as the world pays it out turn by turn; or success, 1 or 0 at its end. Where
    parts of a task are paid and one wrong step takes all back, as in SciWorld, scores teach not to dare that step."""
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
    max_grad_norm: float = 1e4
    """The run stops, with the batch saved, where the gradient's norm before clipping is above this."""
    clip_range: float = 0.2
    """PPO's epsilon: the ratio to the behaviour policy is clipped to [1 - eps, 1 + eps]."""
    clip_range_high: float | None = None
    """Epsilon of the upper bound alone (clip-higher of DAPO); unset is `clip_range`."""
    dual_clip: float = 0.0
    """Largest ratio that counts for a negative advantage, above 1 (dual-clip PPO); 0 leaves it open."""
    ratio_cap: float = 0.0
    """Above 0, a token of an older policy counts by the ratio of the policy before the update to the one that
    sampled it, at most this much, and the clip is around the policy before the update. 0 leaves it out."""
    epochs: int = 1
    """Passes over an update's episodes."""
    minibatches: int = 1
    """Optimizer steps per pass."""
    loss_mean: Literal["token", "episode"] = "token"
    """token: every sampled token of an optimizer step weighs the same (every algorithm's default). episode: every
    episode does, however long: the mean of the episodes' means."""
    skip_length_cut: bool = False
    """Leave episodes that were cut by their length out of the loss and its mean; their group still counts them."""
    kl_coef: float = 0.0
    """Weight of the KL against the reference policy; with `kl_target`, where it starts."""
    kl_in: Literal["loss", "reward"] = "loss"
    """loss: a term beside the policy loss. reward: taken off the reward of each sampled token."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1: the log-ratio. k2: half its square. k3: never negative, and with the mean of k1. In the loss, k1 has no
    gradient on average and is refused."""
    kl_target: float = 0.0
    """KL per token that `kl_coef` adapts to from update to update; 0 keeps it fixed."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    scale_by_std: bool = True
    """GRPO: divide the advantage by the group's standard deviation."""
    whiten: bool | None = None
    """Bring the advantages of all tokens of an update, in all processes, to mean 0 and standard deviation 1.
    Unset: as the algorithm has it, which is true for ppo and reinforce++ and false for grpo and rloo."""
    gamma: float = 1.0
    """reinforce++ and ppo: discount per sampled token; what the world says takes none."""
    gae_lambda: float = 1.0
    """ppo: lambda of generalized advantage estimation, per sampled token."""
    bootstrap: bool = True
    """ppo: an episode that was cut, by turns or by length, goes on with the critic's value of its last state. False
    treats it as ended, as the published code does."""
    critic_learning_rate: float = 1e-3
    """ppo: AdamW's learning rate for the critic."""
    tokens_per_batch: int = 4096
    """Token budget of one forward and backward pass."""
    refill_groups: int = 0
    """How many further groups an update may draw to replace those whose rewards are all equal."""


@dataclass(frozen=True)
class SFTConfig:
    """Supervised fine-tuning: cross entropy on the agent's own tokens of episodes on file."""

    files: tuple[str, ...] = ()
    """Trajectory files: our own JSON Lines, or AgentGym's JSON of conversations. Without any, the expert plays
    `warm_start.episodes` training episodes."""
    min_score: float = 1.0
    """Learn from episodes that succeeded or scored at least this much; those without a score are demonstrations."""
    updates: int = 32
    """Optimizer steps."""
    batch_size: int = 8
    """Episodes per step."""
    learning_rate: float = 1e-3
    """AdamW's learning rate."""


@dataclass(frozen=True)
class DPOConfig:
    """Direct preference optimization; the reference is the policy where the method starts."""

    files: tuple[str, ...] = ()
    """Trajectory files as for `sft.files`. Without any, the policy plays `items` training items."""
    items: int = 32
    """Training items to play where no file is named."""
    attempts: int = 8
    """Episodes per item."""
    min_score: float = 0.7
    """The better episode of a pair succeeded or scored at least this much."""
    min_gap: float = 0.01
    """The worse one scored at least this much less."""
    pairs_per_item: int = 1
    """Most pairs of one item: the best with the worst, the second best with the second worst, and so on."""
    beta: float = 0.1
    """How strongly the policy is held to the reference; larger stays closer."""
    updates: int = 32
    """Optimizer steps."""
    batch_size: int = 8
    """Pairs per step."""
    learning_rate: float = 1e-4
    """AdamW's learning rate."""


@dataclass(frozen=True)
class EvolveConfig:
    """AgentEvol: explore, keep what went well, imitate it; the first demonstrations are those of the warm start."""

    updates: int = 4
    """Iterations."""
    items: int = 32
    """Training items to explore per iteration."""
    attempts: int = 4
    """Episodes per item."""
    min_score: float = 1.0
    """Keep episodes that succeeded or scored at least this much."""
    steps: int = 16
    """Optimizer steps per iteration; each iteration fits the policy anew, from where the method started."""
    batch_size: int = 8
    """Episodes per step."""
    learning_rate: float = 1e-3
    """AdamW's learning rate."""


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
class MixConfig:
    """One scenario of a mixed run, `[mix.<name>]`; all that it does not say is as the other sections have it."""

    id: str = ""
    """Gymnasium id. Its servers are named by the scenario's variable, as in `AGENTGYM_BABYAI_URL`, or started."""
    groups: int = 4
    """Its quota: items per update. Warm start and its measurements are divided in the same proportion."""
    tasks: tuple[str, ...] = ()
    """As `env.tasks`."""
    items: str = ""
    """As `env.items`."""
    options: dict[str, Any] = field(default_factory=dict)
    """As `env.options`."""
    stages: tuple[int, ...] = (30,)
    """As `horizon.stages`; the schedule is that of all, and an adaptive one goes its own way in each."""
    eval_tasks: tuple[str, ...] = ()
    """As `eval.tasks`."""
    eval_horizon: int = 0
    """As `eval.horizon`."""


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
    sft: SFTConfig = field(default_factory=SFTConfig)
    dpo: DPOConfig = field(default_factory=DPOConfig)
    evolve: EvolveConfig = field(default_factory=EvolveConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    mix: dict[str, MixConfig] = field(default_factory=dict)
    """Several scenarios in one run of RL, by names of their own; without any, `env` is the one scenario."""

    @property
    def parts(self) -> dict[str, Config]:
        """The configuration of each scenario of the mix; of a run that mixes nothing, itself, under no name."""
        total = max(1, sum(part.groups for part in self.mix.values()))
        return {name: self._part(part, part.groups / total) for name, part in self.mix.items()} or {"": self}

    def _part(self, part: MixConfig, share: float) -> Config:
        env = replace(self.env, id=part.id, tasks=part.tasks, items=part.items, options=part.options)
        warm_start = replace(
            self.warm_start,
            episodes=max(1, round(share * self.warm_start.episodes)),
            check_episodes=max(1, round(share * self.warm_start.check_episodes)),
        )
        return replace(
            self,
            mix={},
            env=env,
            horizon=replace(self.horizon, stages=part.stages),
            warm_start=warm_start,
            rl=replace(self.rl, groups=part.groups),
            eval=replace(self.eval, tasks=part.eval_tasks, horizon=part.eval_horizon),
        )

    @property
    def updates(self) -> int:
        """How many updates the run's method makes."""
        section: RLConfig | SFTConfig | DPOConfig | EvolveConfig = getattr(self, self.run.method)
        return section.updates
