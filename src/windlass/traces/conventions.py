"""What spans say in the words of others (OpenInference, OpenTelemetry's GenAI, Traceloop, Vercel's AI SDK), said in
MLflow's words too: kind of span, inputs, outputs, tokens, model. What a span says in MLflow's words stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from windlass.traces.spans import INPUTS, MODEL, OUTPUTS, PROVIDER, SPAN_TYPE, USAGE, Span, dump, load_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """Names of attributes; where there are several, the first that says something counts."""

    kind: str = ""
    kinds: Mapping[str, str] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()  # regular expressions
    outputs: tuple[str, ...] = ()
    input_tokens: str = ""
    output_tokens: str = ""
    total_tokens: str = ""
    cache_read_tokens: tuple[str, ...] = ()
    cache_creation_tokens: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    provider: str = ""


_SAME = ("TOOL", "CHAIN", "LLM", "RETRIEVER", "EMBEDDING", "AGENT", "RERANKER", "UNKNOWN", "GUARDRAIL", "EVALUATOR")
_VERCEL_LLM = ("generateText", "streamText", "generateObject", "streamObject")

CONVENTIONS = (
    Convention(  # OpenInference
        kind="openinference.span.kind",
        kinds={name: name for name in _SAME},
        inputs=(r"input\.value",),
        outputs=(r"output\.value",),
        input_tokens="llm.token_count.prompt",
        output_tokens="llm.token_count.completion",
        total_tokens="llm.token_count.total",
        cache_read_tokens=("llm.token_count.prompt_details.cache_read",),
        cache_creation_tokens=("llm.token_count.prompt_details.cache_write",),
        models=("llm.response.model_name", "llm.model_name", "llm.request.model_name", "embedding.model_name"),
        provider="llm.provider",
    ),
    Convention(  # OpenTelemetry's own
        kind="gen_ai.operation.name",
        kinds={
            "chat": "CHAT_MODEL",
            "create_agent": "AGENT",
            "embeddings": "EMBEDDING",
            "execute_tool": "TOOL",
            "generate_content": "LLM",
            "invoke_agent": "AGENT",
            "text_completion": "LLM",
            "response": "LLM",
        },
        inputs=(r"gen_ai\.input\.messages", r"gen_ai\.tool\.call\.arguments"),
        outputs=(r"gen_ai\.output\.messages", r"gen_ai\.tool\.call\.result"),
        input_tokens="gen_ai.usage.input_tokens",
        output_tokens="gen_ai.usage.output_tokens",
        cache_read_tokens=("gen_ai.usage.cache_read.input_tokens",),
        cache_creation_tokens=("gen_ai.usage.cache_write.input_tokens", "gen_ai.usage.cache_creation.input_tokens"),
        models=("gen_ai.response.model", "gen_ai.request.model"),
        provider="gen_ai.provider.name",
    ),
    Convention(  # Traceloop
        kind="traceloop.span.kind",
        kinds={"workflow": "WORKFLOW", "task": "TASK", "agent": "AGENT", "tool": "TOOL", "unknown": "UNKNOWN"},
        inputs=(
            r"traceloop\.entity\.input",
            r"gen_ai\.prompt\.\d+\.content",
            r"gen_ai\.completion\.\d+\.tool_calls\.\d+\.arguments",
        ),
        outputs=(r"traceloop\.entity\.output", r"gen_ai\.completion\.\d+\.content"),
        input_tokens="gen_ai.usage.prompt_tokens",
        output_tokens="gen_ai.usage.completion_tokens",
        total_tokens="llm.usage.total_tokens",
        provider="gen_ai.system",
    ),
    Convention(  # Vercel's AI SDK
        kind="ai.operationId",
        kinds={
            **{f"ai.{name}": "LLM" for name in _VERCEL_LLM},
            **{f"ai.{name}.{'doGenerate' if 'gen' in name else 'doStream'}": "LLM" for name in _VERCEL_LLM},
            "ai.toolCall": "TOOL",
            "ai.embed": "EMBEDDING",
            "ai.embed.doEmbed": "EMBEDDING",
            "ai.embedMany": "EMBEDDING",
        },
        inputs=(r"ai\.prompt", r"ai\.toolCall\.args", r"ai\.value", r"ai\.values"),
        outputs=(
            r"ai\.response\.text",
            r"ai\.toolCall\.result",
            r"ai\.response\.object",
            r"ai\.embedding",
            r"ai\.embeddings",
        ),
    ),
)


def translate(span: Span) -> Span:
    attributes = dict(span.attributes)
    if load_json(attributes.get(SPAN_TYPE)) in (None, "UNKNOWN") and (kind := _kind(attributes)):
        attributes[SPAN_TYPE] = dump(kind)
    for key, names in ((INPUTS, "inputs"), (OUTPUTS, "outputs")):
        if key not in attributes and (value := _first(attributes, names)):
            attributes[key] = value
    if USAGE not in attributes and (usage := _usage(attributes)):
        attributes[USAGE] = dump(usage)
    if MODEL not in attributes and (model := _model(attributes)):
        attributes[MODEL] = dump(model)
    if PROVIDER not in attributes and (provider := _provider(attributes)):
        attributes[PROVIDER] = dump(provider)
    return replace(span, attributes=attributes)


def _kind(attributes: Mapping[str, str]) -> str | None:
    for convention in CONVENTIONS:
        said = load_json(attributes.get(convention.kind))
        if isinstance(said, str) and said in convention.kinds:
            return convention.kinds[said]
    return None


def _first(attributes: Mapping[str, str], names: str) -> str | None:
    for convention in CONVENTIONS:
        for pattern in getattr(convention, names):
            for key in _matching(attributes, pattern):
                if load_json(attributes[key]):
                    return attributes[key]
    return None


def _matching(attributes: Mapping[str, str], pattern: str) -> Iterator[str]:
    plain = pattern.replace("\\.", ".")
    if "\\" not in plain:
        yield from (plain,) if plain in attributes else ()
    else:
        yield from (key for key in attributes if re.fullmatch(pattern, key))


def _usage(attributes: Mapping[str, str]) -> dict[str, int] | None:
    for convention in CONVENTIONS:
        given = _whole(attributes.get(convention.input_tokens))
        made = _whole(attributes.get(convention.output_tokens))
        if given is None or made is None:
            continue
        total = _whole(attributes.get(convention.total_tokens))
        usage = {
            "input_tokens": given,
            "output_tokens": made,
            "total_tokens": given + made if total is None else total,
        }
        for name in ("cache_read", "cache_creation"):
            said = [_whole(attributes.get(key)) for key in getattr(convention, f"{name}_tokens")]
            if (count := next((one for one in said if one is not None), None)) is not None:
                usage[f"{name}_input_tokens"] = count
        return usage
    return None


def _model(attributes: Mapping[str, str]) -> str | None:
    for convention in CONVENTIONS:
        for key in convention.models:
            if isinstance(said := load_json(attributes.get(key)), str) and said:
                return said
    for key in (INPUTS, OUTPUTS):
        said = load_json(attributes.get(key))
        if isinstance(said, dict) and isinstance(said.get("model"), str) and said["model"]:
            model: str = said["model"]
            return model
    return None


def _provider(attributes: Mapping[str, str]) -> str | None:
    for convention in CONVENTIONS:
        if isinstance(said := load_json(attributes.get(convention.provider)), str) and said:
            return said
    return None


def _whole(text: Any) -> int | None:
    """A number, maybe as text in text."""
    value = load_json(load_json(text))
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return int(value)
    except (ValueError, OverflowError):
        return None


def preview(text: str | None, *, role: str, limit: int = 1000) -> str | None:
    """The last message of this role if the text is a conversation, cut to a length that lists can show."""
    if not text:
        return None
    try:
        messages = _messages(json.loads(text))
    except (ValueError, RecursionError):
        messages = []
    said = next((one for one in reversed(messages) if one.get("role") == role), messages[-1] if messages else None)
    shown = ((_text(said) if said else "") or text).replace("\x00", "\ufffd")
    return shown if len(shown) <= limit else shown[: limit - 3] + "..."


def _messages(found: Any) -> list[Mapping[str, Any]]:
    """In the forms of OpenAI's requests and answers."""
    if not isinstance(found, dict):
        return []
    choices = found.get("choices")
    if isinstance(messages := found.get("messages"), list) and messages:
        return [item for item in messages if _is_message(item)]
    if (
        isinstance(choices, list)
        and choices
        and isinstance(choices[0], dict)
        and _is_message(choices[0].get("message"))
    ):
        return [choices[0]["message"]]
    for name in ("input", "output"):
        if isinstance(listed := found.get(name), list) and listed:
            return [item for item in listed if _is_message(item)]
    return _messages(found["request"]) if "request" in found else []


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and "role" in item and "content" in item


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            return part
        if isinstance(part, dict) and part.get("type") in ("text", "output_text"):
            return str(part.get("text") or "")
    return ""
