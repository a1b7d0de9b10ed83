"""Names of models as people write them: one spelling for all, and why some models cannot be had."""

from __future__ import annotations

import re

_OWNERS = frozenset(("meta", "openai", "google", "nvidia", "microsoft", "mistralai", "zai"))
"""Words before a name that say whose it is."""

_KINDS = frozenset(("moe", "dense", "model"))
"""Words inside a name that its size says already."""

_TUNED = re.compile(
    r"instruct|chat|base|hf|it|pt|thinking|preview|v0\.\d+|\d{4}|base|8k|fp8|bf16|nvfp4|mxfp4|fp4|int[48]|w\d+a\d+|awq|gptq|dynamic"
)
"""Words after a name that change its weights, or their format or date, but not its shape."""

_ACTIVE = re.compile(r"-a\d+b$")

BEYOND = {
    "nemotron3super": "its experts work in a latent space",
    "nemotron3ultra": "its experts work in a latent space",
}
"""By the beginning of a key what in its config.json keeps a model from having attention and an MLP in every layer."""


def model_key(name: str) -> str:
    """The one spelling of a name, without owner, separators, and words that leave the shape as it is.

    >>> model_key("meta-llama/Llama-3.1-405B-Instruct"), model_key("Llama 3.1 405 billion")
    ('llama3.1405b', 'llama3.1405b')
    """
    text = name.lower().replace("\N{MULTIPLICATION SIGN}", "x").rsplit("/", 1)[-1]
    text = re.sub(r"(\d)\s*billion\b", r"\1b", text)
    words = [word for word in re.split(r"[\s_\-()]+", text) if word]
    while len(words) > 1 and words[0] in _OWNERS:
        words = words[1:]
    while len(words) > 1 and _TUNED.fullmatch(words[-1]):
        words = words[:-1]
    return "".join(word for word in words if word not in _KINDS) or text


def size_key(name: str) -> str:
    """The spelling of a name of experts without the parameters that are active: ``qwen3-30b-a3b`` is Qwen3 30B too."""
    return model_key(_ACTIVE.sub("", name))


def beyond(key: str) -> str:
    """Why a model of this key is no preset; empty where nothing is known against it."""
    return next((why for start, why in BEYOND.items() if key.startswith(start)), "")
