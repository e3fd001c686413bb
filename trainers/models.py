"""The policy: a causal language model, its tokenizer, what of it is trained, and what it is compared with."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.peft_utils import find_adapter_config_file

from gym_agents.errors import near_match
from trainers.config import PolicyConfig
from trainers.critic import Critic
from trainers.embedded import EMBEDDED, smollm2_folder, tiny_model, tiny_tokenizer
from trainers.errors import PolicyError

_REFERENCE = "reference."
_CRITIC = "critic."


class Policy:
    """A model that acts and learns.

    Attributes:
        model: what generates and is trained; in evaluation mode, so that no dropout separates the two.
        tokenizer: its tokenizer, with its chat template.
        name: the name it was asked for by.
        trainable: the parameters that learn, by name.
        critic: says what a state is worth, where an algorithm asks for it.
    """

    def __init__(
        self, model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, name: str
    ) -> None:
        """Wraps a model that is ready to learn.

        Raises:
            PolicyError: none of its parameters is trainable.
        """
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.trainable: dict[str, nn.Parameter] = {
            key: parameter for key, parameter in model.named_parameters() if parameter.requires_grad
        }
        if not self.trainable:
            raise PolicyError(f"{name} has no trainable parameter, so that nothing would be learned.")
        self.critic: Critic | None = None
        self._reference: dict[str, Tensor] | None = None

    def add_critic(self, seed: int = 0) -> None:
        """Gives it a critic that knows nothing yet; `seed` fixes its first weights."""
        width = self.model.get_output_embeddings().weight.shape[1]
        self.critic = Critic(width, seed=seed).to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return next(iter(self.trainable.values())).device

    @property
    def adapted(self) -> bool:
        """Whether an adapter learns, and the model under it stays as it is."""
        return isinstance(self.model, PeftModel)

    def describe(self) -> str:
        """One line for the screen: name, size, what is trained, type of the weights."""
        learning = sum(parameter.numel() for parameter in self.trainable.values())
        total = sum(parameter.numel() for parameter in self.model.parameters()) - self.adapted * learning
        small = " (a small embedded model)" if self.name in EMBEDDED else ""
        how = "in a LoRA adapter" if self.adapted else "of them"
        dtype = str(self.model.dtype).removeprefix("torch.")
        return (
            f"{self.name}{small}: {_millions(total)} parameters in {dtype} on {self.device}, "
            f"training {_millions(learning)} {how}"
        )

    def freeze_reference(self) -> None:
        """Makes the policy as it is now the reference; call it where RL starts, after any warm start."""
        self._reference = {key: parameter.detach().clone() for key, parameter in self.trainable.items()}

    def return_to_reference(self) -> None:
        """Takes the policy back to its reference; parameters keep their identity.

        Raises:
            PolicyError: `freeze_reference` was never called.
        """
        with self.reference():
            start = {key: parameter.detach().clone() for key, parameter in self.trainable.items()}
        with torch.no_grad():
            for key, parameter in self.trainable.items():
                parameter.copy_(start[key])

    @contextmanager
    def reference(self) -> Iterator[PreTrainedModel | PeftModel]:
        """The reference policy, to score tokens with, without gradients; meanwhile the policy is away.

        Raises:
            PolicyError: `freeze_reference` was never called.
        """
        if self._reference is None:
            raise PolicyError("There is no reference policy yet: call freeze_reference() where RL starts.")
        learned = {key: parameter.data for key, parameter in self.trainable.items()}
        try:
            self._point_to(self._reference)
            with torch.no_grad():
                yield self.model
        finally:
            self._point_to(learned)

    def _point_to(self, weights: dict[str, Tensor]) -> None:
        for key, parameter in self.trainable.items():
            parameter.data = weights[key]

    def prepare_to_learn(self) -> None:
        """Evaluation mode, but for layers that were told to recompute their activations."""
        self.model.eval()
        for layer in self.model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.training = layer.gradient_checkpointing

    def fingerprint(self) -> str:
        """A checksum of the weights that learn; what they act with beside them follows from the name."""
        found = hashlib.sha256()
        for key, parameter in self.trainable.items():
            found.update(key.encode())
            found.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()

    def save_weights(self, path: Path) -> None:
        """Writes the trained weights, with reference and critic where there are any, into one safetensors file."""
        weights = {key: parameter.detach() for key, parameter in self.trainable.items()}
        weights |= {_REFERENCE + key: tensor for key, tensor in (self._reference or {}).items()}
        if self.critic is not None:
            weights |= {_CRITIC + key: tensor for key, tensor in self.critic.state_dict().items()}
        save_file(weights, path)

    def load_weights(self, path: Path) -> None:
        """Reads what `save_weights` wrote; parameters keep their identity, so an optimizer keeps its hold.

        A critic in the file is passed over where the policy has none.

        Raises:
            PolicyError: the file is of another model or adapter, or lacks the critic.
        """
        saved = load_file(path, device=str(self.device))
        reference, critic = _take(saved, _REFERENCE), _take(saved, _CRITIC)
        for found in (saved, reference or saved):
            if _shapes(found) != _shapes(self.trainable):
                raise PolicyError(f"{path} does not hold the trainable weights of {self.name}.")
        if self.critic is not None and _shapes(critic) != _shapes(self.critic.state_dict()):
            raise PolicyError(f"{path} does not hold the critic of {self.name}.")
        with torch.no_grad():
            for key, parameter in self.trainable.items():
                parameter.copy_(saved[key])
        if self.critic is not None:
            self.critic.load_state_dict(critic)
        self._reference = reference or None

    def save_whole(self, folder: Path) -> None:
        """Writes the whole model, any adapter merged into it, into a folder that plain transformers can load."""
        model = copy.deepcopy(self.model)
        if isinstance(model, PeftModel):
            model = model.merge_and_unload()
        model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """Writes the adapter, or the whole model, into a folder that `load_policy` can load."""
        if isinstance(self.model, PeftModel):
            self.model.save_pretrained(str(folder), save_embedding_layers=False)
        else:
            self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _take(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Takes out those whose names begin with a prefix, and gives them without it."""
    return {key.removeprefix(prefix): weights.pop(key) for key in [*weights] if key.startswith(prefix)}


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f}M"


def _shapes(weights: Any) -> dict[str, torch.Size]:
    return {key: tensor.shape for key, tensor in weights.items()}


def load_policy(config: PolicyConfig, device: torch.device, *, seed: int = 0) -> Policy:
    """Loads a model, attaches what is to be trained, and puts it on a device.

    An embedded name needs no hub. Any other name is a Hugging Face model, or a folder in its format; one
    that holds a peft adapter goes on training that adapter, at the rank it has. `seed` fixes a new
    adapter's first weights; no global random state is touched.

    Raises:
        PolicyError: the model cannot be found, trained, or packed into rows at `config.max_context`.
    """
    name = config.model
    _refuse_misspelt(name)
    source = _base(name)
    tokenizer, model = _load_tokenizer(source), _load_model(source, _dtype(config, device))
    _check_attention(model.config, source, config.max_context)
    model.get_input_embeddings().padding_idx = (
        None  # nothing is padded, and that id may end replies: it learns
    )
    with _old_names():
        if config.gradient_checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if source != name:
            model = PeftModel.from_pretrained(model, name, is_trainable=True)
        elif config.lora_rank:
            model = _with_lora(model, source, config, seed)
    return Policy(model.to(device), tokenizer, name)


@contextmanager
def _old_names() -> Iterator[None]:
    """peft, and every transformers since 5.0, know the names that the newest transformers warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`(is_)?gradient_checkpointing\w*` is deprecated", FutureWarning)
        yield


def _refuse_misspelt(name: str) -> None:
    """A name that is almost an embedded one would be asked of a hub, with a long wait and a puzzling answer."""
    if name not in EMBEDDED and "/" not in name and not Path(name).exists():
        meant = near_match(name, EMBEDDED)
        if meant:
            raise PolicyError(f"No policy {name!r}.{meant}")


def _dtype(config: PolicyConfig, device: torch.device) -> torch.dtype:
    """By default bfloat16 is for a GPU's frozen weights: a small step on bfloat16 weights rounds to none."""
    if config.dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" and config.lora_rank else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of the policy that `policy.model` names.

    Raises:
        PolicyError: it cannot be found.
    """
    _refuse_misspelt(name)
    return _load_tokenizer(_base(name))


def _base(name: str) -> str:
    """The model under an adapter's folder; any other name is its own."""
    adapter = None if name in EMBEDDED else find_adapter_config_file(name)
    return str(PeftConfig.from_pretrained(name).base_model_name_or_path) if adapter else name


def _load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    if source == "tiny":
        return tiny_tokenizer()
    with _loading(source) as place:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(place)
    return tokenizer


def _load_model(source: str, dtype: torch.dtype) -> PreTrainedModel:
    if source == "tiny":
        return tiny_model().to(dtype)
    with _loading(source) as place:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            place, dtype=dtype, attn_implementation="sdpa"
        )
    return model


@contextmanager
def _loading(source: str) -> Iterator[str | Path]:
    """Where transformers finds it; that it does not is told as ours."""
    try:
        yield smollm2_folder() if source == "smollm2" else source
    except (OSError, ValueError) as error:
        raise PolicyError(f"The policy {source!r} cannot be loaded: {error}") from error


def _check_attention(config: Any, name: str, max_context: int) -> None:
    """A row shows each token its whole episode: that fits no layer which sees less, or has a memory."""
    text = config.get_text_config()
    if max_context > text.max_position_embeddings:
        raise PolicyError(
            f"policy.max_context is {max_context}, but {name} holds {text.max_position_embeddings} tokens."
        )
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    window = getattr(text, "sliding_window", None) or max_context
    if kinds - {"full_attention", "sliding_attention"} or window < max_context:
        raise PolicyError(
            f"{name} has {', '.join(sorted(kinds))} layers with a window of {window}, which cannot learn "
            f"from packed rows of {max_context} tokens: choose a model with full attention."
        )


def _with_lora(model: PreTrainedModel, source: str, config: PolicyConfig, seed: int) -> PeftModel:
    model.name_or_path = source  # what the adapter's file names as its base
    lora = LoraConfig(
        task_type="CAUSAL_LM", r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear"
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, lora)
