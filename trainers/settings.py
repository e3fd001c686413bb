"""A run's configuration from a recipe and the command line: every mistake at once, each with its place."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gym_agents.errors import UsageError, near_match
from gym_agents.scenario import fits
from trainers.config import Config, MixConfig
from trainers.limits import broken_limits

KINDS: dict[str, type] = {
    section: kind for section, kind in typing.get_type_hints(Config).items() if section != "mix"
}
"""Section -> its dataclass."""

SECTIONS: dict[str, dict[str, Any]] = {
    section: typing.get_type_hints(kind) for section, kind in KINDS.items()
}
"""Section -> key -> type, as `trainers/config.py` declares them."""

MIXED = re.compile(r"mix\.[\w-]+")
"""Sections of a mixed run's scenarios, which the user names."""

_UNSET = "None"
"""How a flag, and an option in a recipe, says that there is no value."""


class ConfigError(UsageError):
    """A run's configuration holds mistakes; `mistakes` has one line for each."""

    code = "bad_config"

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = list(mistakes)


@dataclass(frozen=True)
class Setting:
    """One value that somebody wrote, and where."""

    section: str
    key: str
    value: Any
    source: str
    """`file:line`, or the flag."""


def _kind(section: str) -> type:
    return MixConfig if MIXED.fullmatch(section) else KINDS[section]


def _keys(section: str) -> dict[str, Any]:
    """Key -> type of a section; none where there is no such section."""
    if MIXED.fullmatch(section):
        return typing.get_type_hints(MixConfig)
    return SECTIONS.get(section, {})


def load(arguments: Sequence[str]) -> Config:
    """The configuration that `[@recipe.toml] [--section.key value ...]` asks for; later settings win.

    Raises:
        ConfigError: naming every mistake.
    """
    mistakes: list[str] = []
    recipes, words = _split(arguments, mistakes)
    written = [setting for path in recipes for setting in _read_recipe(path, mistakes)]
    written += _read_flags(words, mistakes)
    settings = [
        setting for setting in written if _is_known(setting, mistakes) and _has_type(setting, mistakes)
    ]
    config = _build(settings)
    sources = {f"{setting.section}.{setting.key}": setting.source for setting in settings}
    mistakes += [f"{sources.get(name, 'default')}: {name} {words}" for name, words in broken_limits(config)]
    if mistakes:
        raise ConfigError(mistakes)
    return config


def _split(arguments: Sequence[str], mistakes: list[str]) -> tuple[list[Path], list[tuple[str, list[str]]]]:
    """The recipe, and each flag with the words that follow it."""
    recipes: list[Path] = []
    flags: list[tuple[str, list[str]]] = []
    for word in arguments:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            flags.append((name, [value] if equals else []))
        elif flags:
            flags[-1][1].append(word)
        elif word.startswith("@") and not recipes:
            recipes.append(Path(word[1:]))
        else:
            mistakes.append(f"{word}: not understood; a run takes one @recipe.toml, then --section.key value")
    return recipes, flags


# Recipes.


def _read_recipe(path: Path, mistakes: list[str]) -> Iterator[Setting]:
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        near = near_match(path.name, (other.name for other in path.parent.glob("*.toml")))
        mistakes.append(f"{path}: cannot be read: {error.strerror}.{near}")
        return
    except ValueError as error:
        line = re.search(r"at line (\d+)", str(error))
        mistakes.append(f"{path}:{line[1] if line else 1}: is not TOML: {error}")
        return
    lines = _key_lines(text)
    for section, table in _flat(tables):
        place = tuple(section.split("."))
        rows = table.items() if isinstance(table, dict) and _keys(section) else [("", table)]
        for key, value in rows:
            line_number = lines.get((*place, key)) or lines.get(place) or lines.get(place[:1], 1)
            yield Setting(section, key, value, f"{path}:{line_number}")


def _flat(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Each section and what it holds; those of the mix are sections of their own."""
    for section, table in tables.items():
        if section == "mix" and isinstance(table, dict):
            yield from ((f"mix.{name}", part) for name, part in table.items())
        else:
            yield section, table


def _key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Line number of each section and of each key: `("rl",)`, `("rl", "updates")`."""
    lines: dict[tuple[str, ...], int] = {}
    header: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if match := re.match(r"\s*\[+([^\]]+)\]", line):
            header = _path(match[1])
            lines.setdefault(header, number)
        elif match := re.match(r"\s*([\w.\"' -]+?)\s*=", line):
            path = (*header, *_path(match[1]))
            for length in range(1, len(path) + 1):
                lines.setdefault(path[:length], number)
    return lines


def _path(name: str) -> tuple[str, ...]:
    return tuple(part.strip(" \"'") for part in name.split("."))


# Flags.


def _read_flags(flags: Sequence[tuple[str, list[str]]], mistakes: list[str]) -> Iterator[Setting]:
    for flag, words in flags:
        section, key, option = _parts(flag.removeprefix("--"))
        hint = _keys(section).get(key)
        if not words and typing.get_origin(hint) is not tuple:
            mistakes.append(f"{flag}: needs a value")
        elif option:
            yield Setting(section, key, {option: _literal(words[0])}, flag)
        else:
            yield Setting(section, key, _value(words, hint), flag)


def _parts(name: str) -> tuple[str, str, str]:
    """Section, key and option of a flag.

    >>> _parts("rl.updates"), _parts("mix.textcraft.options.distractors")
    (('rl', 'updates', ''), ('mix.textcraft', 'options', 'distractors'))
    """
    section, _, rest = name.partition(".")
    if section == "mix":
        scenario, _, rest = rest.partition(".")
        section = f"mix.{scenario}"
    key, _, option = rest.partition(".")
    return section, key, option


def _value(words: list[str], hint: Any) -> Any:
    """The words of a flag as the value that TOML would have held."""
    if typing.get_origin(hint) is tuple:
        texts = str in typing.get_args(hint)
        return [word if texts else _literal(word) for word in words]
    if len(words) > 1:
        return words
    return words[0] if hint is str or typing.get_origin(hint) is Literal else _literal(words[0])


def _literal(word: str) -> Any:
    """A word as TOML reads it, else as a text."""
    try:
        return tomllib.loads(f"value = {word.lower() if word in ('True', 'False') else word}")["value"]
    except tomllib.TOMLDecodeError:
        return None if word == _UNSET else word


# Checks.


def _is_known(setting: Setting, mistakes: list[str]) -> bool:
    """Notes an unknown section or key, with the one that may be meant."""
    keys = _keys(setting.section)
    if setting.key in keys:
        return True
    if keys and setting.key:
        place, name = f"unknown key {setting.key!r} in [{setting.section}]", setting.key
        near = near_match(name, keys)
    elif keys:
        place, name, near = f"[{setting.section}] must be a table", setting.section, ""
    else:
        place, name = f"unknown name {setting.section!r} at top level", setting.section
        near = near_match(name, SECTIONS)
    mistakes.append(f"{setting.source}: {place}.{near or _elsewhere(name)}")
    return False


def _elsewhere(key: str) -> str:
    """Where a key that is unknown here belongs, or one that is like it."""
    known = {name for keys in SECTIONS.values() for name in keys}
    if key in known:
        return f" {key!r} belongs to {_owners(key)}."
    near = near_match(key, sorted(known))
    name = near.partition("'")[2].partition("'")[0]
    return f"{near.rstrip('?')} in {_owners(name)}?" if near else ""


def _owners(key: str) -> str:
    """The sections that have a key."""
    return " or ".join(f"[{section}]" for section, keys in SECTIONS.items() if key in keys)


def _has_type(setting: Setting, mistakes: list[str]) -> bool:
    hint = _keys(setting.section)[setting.key]
    good = isinstance(setting.value, dict) if typing.get_origin(hint) is dict else fits(setting.value, hint)
    if not good:
        name = f"{setting.section}.{setting.key}"
        mistakes.append(f"{setting.source}: {name} is {setting.value!r}, but must be {_describe(hint)}")
    return good


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple[int, ...]: "a list of whole numbers",
    tuple[str, ...]: "a list of texts",
    dict[str, Any]: "a table",
}


def _describe(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(hint))
    return _WORDS.get(hint) or " or ".join(_WORDS[part] for part in typing.get_args(hint) if part in _WORDS)


# Values.


def _build(settings: Sequence[Setting]) -> Config:
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for setting in settings:
        section = values.setdefault(setting.section, {})
        hint = _keys(setting.section)[setting.key]
        if isinstance(setting.value, dict):
            options = {name: None if value == _UNSET else value for name, value in setting.value.items()}
            section[setting.key] = {**section.get(setting.key, {}), **options}
        elif isinstance(setting.value, list):
            section[setting.key] = tuple(setting.value)
        else:
            section[setting.key] = float(setting.value) if hint is float else setting.value
    built = {section: _kind(section)(**given) for section, given in values.items()}
    mix = {section.removeprefix("mix."): built.pop(section) for section in values if MIXED.fullmatch(section)}
    return Config(**built, mix=mix)


def sections(config: Config) -> dict[str, dict[str, Any]]:
    """Section -> key -> value; each scenario of the mix is a section `mix.<name>`."""
    tables: dict[str, dict[str, Any]] = dataclasses.asdict(config)
    return tables | {f"mix.{name}": part for name, part in tables.pop("mix").items()}


def to_toml(config: Config) -> str:
    """The configuration as TOML that `load` reads back; unset fields are left out."""
    tables = []
    for section, fields in sections(config).items():
        plain = {
            key: value for key, value in fields.items() if not isinstance(value, dict) and value is not None
        }
        tables.append((section, plain))
        tables += [
            (f"{section}.{key}", value) for key, value in fields.items() if isinstance(value, dict) and value
        ]
    return "\n".join(f"[{name}]\n{_rows(table)}" for name, table in tables)


def _rows(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())


def _toml(value: Any) -> str:
    """A value as TOML writes it; it has no null, for which the word stands."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(key))} = {_toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    text = json.dumps(_UNSET if value is None else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")
