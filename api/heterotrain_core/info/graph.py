"""Which rules feed which: order of application, rings, and why a rule cannot be obeyed beside the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from heterotrain_core.info.chain import chain_faults
from heterotrain_core.info.rules import MAIN, Emit, ProcessingRule, Trigger
from heterotrain_core.info.selectors import template_faults
from heterotrain_core.info.stats import AGGREGATES
from heterotrain_core.info.values import MetricType, is_metric_name

MAX_RULES: Final = 512
MAX_WINDOW_SAMPLES: Final = 4096


def feeds(rules: Iterable[ProcessingRule]) -> dict[str, tuple[str, ...]]:
    """For each rule's name those of the rules that read one of its outputs, whatever the entity."""
    rules = tuple(rules)
    readers: dict[str, list[str]] = {}
    for rule in rules:
        for metric in {item.metric for item in rule.inputs.values()}:
            readers.setdefault(metric, []).append(rule.name)
    return {rule.name: tuple(sorted({r for m in stored_metrics(rule) for r in readers.get(m, ())})) for rule in rules}


def stored_metrics(rule: ProcessingRule) -> tuple[str, ...]:
    """Metrics that a rule writes."""
    return () if rule.emit is Emit.EVENT else tuple(output.metric for output in rule.outputs.values())


def order(rules: Sequence[ProcessingRule]) -> list[str]:
    """Names such that each rule comes after those that feed it; as given where that leaves a choice.

    Raises `ValueError` for a ring, naming its rules.
    """
    edges = feeds(rules)
    waiting = dict.fromkeys(edges, 0)
    for readers in edges.values():
        for reader in readers:
            waiting[reader] += 1
    ready = [name for name in edges if waiting[name] == 0]
    done: list[str] = []
    while ready:
        name = ready.pop(0)
        done.append(name)
        for reader in edges[name]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.append(reader)
    if len(done) < len(edges):
        raise ValueError(f"the rules feed each other in a ring: {' -> '.join(ring(edges))}")
    return done


def ring(edges: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """A ring in a graph, its first name again at the end; empty if there is none."""
    finished: set[str] = set()
    for start in edges:
        path: list[str] = [start]
        branches = [iter(edges[start])]
        while branches:
            following = next(branches[-1], None)
            if following is None:
                finished.add(path.pop())
                branches.pop()
            elif following in path:
                return (*path[path.index(following) :], following)
            elif following not in finished:
                path.append(following)
                branches.append(iter(edges[following]))
    return ()


def refusal(rule: ProcessingRule, others: Iterable[ProcessingRule]) -> str | None:
    """Why `rule` cannot be obeyed beside `others` (of other names); `None` if it can."""
    others = tuple(others)
    for field, fault in rule_faults(rule):
        return f"{field}: {fault}"
    if len(others) >= MAX_RULES:
        return f"there are {MAX_RULES} processing rules already; remove one"
    mine = set(stored_metrics(rule))
    for other in others:
        both = mine & set(stored_metrics(other))
        if both:
            return f"output {min(both)} is written by rule {other.name} already; name another metric"
    found = ring(feeds((rule, *others)))
    if rule.name in found:
        return f"the rules feed each other in a ring: {' -> '.join(found)}; take one input or output away"
    return None


def rule_faults(rule: ProcessingRule) -> Iterator[tuple[str, str]]:
    """(field, what is wrong) for everything that makes a rule impossible by itself."""
    if not rule.inputs:
        yield "inputs", "must have at least one input"
    elif all(item.of is not None for item in rule.inputs.values()):
        yield "inputs", "must have an input without of: its entities are what the rule is applied to"
    if not rule.outputs:
        yield "outputs", "must have at least one output"
    for name, item in rule.inputs.items():
        yield from _input_faults(rule, name)
        if not is_metric_name(item.metric):
            yield f"inputs.{name}.metric", f"is no name of a metric: {item.metric[:60]!r}; use letters, digits, _ and :"
    for part, output in rule.outputs.items():
        if not is_metric_name(output.metric):
            yield (
                f"outputs.{part}.metric",
                f"is no name of a metric: {output.metric[:60]!r}; use letters, digits, _ and :",
            )
        if output.entity is not None and (fault := template_faults(output.entity)):
            yield f"outputs.{part}.entity", fault
    if len({output.metric for output in rule.outputs.values()}) < len(rule.outputs):
        yield "outputs", "must name different metrics"
    yield from chain_faults(rule)
    yield from _setting_faults(rule)


def _input_faults(rule: ProcessingRule, name: str) -> Iterator[tuple[str, str]]:
    item, where = rule.inputs[name], f"inputs.{name}"
    if not name.isidentifier() or not name.isascii():
        yield where, "must be named by letters, digits and _, no digit first: expressions use the name"
    if item.of is None and item.aggregate is not None:
        yield f"{where}.aggregate", "must be left out without of: say whose values are aggregated"
    if item.of is not None:
        if fault := template_faults(item.of):
            yield f"{where}.of", fault
        if "*" in item.of and item.aggregate is None:
            yield (
                f"{where}.aggregate",
                f"is required, because of means several entities: one of {', '.join(AGGREGATES)}",
            )
    if item.aggregate is not None and item.aggregate not in AGGREGATES:
        yield f"{where}.aggregate", f"must be one of {', '.join(AGGREGATES)}, not {item.aggregate!r}"


def _setting_faults(rule: ProcessingRule) -> Iterator[tuple[str, str]]:
    if (rule.trigger is Trigger.PERIOD) != (rule.period is not None):
        yield "period", "must be given with trigger: period, and only with it"
    if rule.period is not None and rule.period <= 0:
        yield "period", "must be more than 0 seconds"
    if rule.window is not None and rule.window <= 0:
        yield "window", "must be more than 0 seconds"
    if not 2 <= rule.window_samples <= MAX_WINDOW_SAMPLES:
        yield "windowSamples", f"must be between 2 and {MAX_WINDOW_SAMPLES}"
    main = rule.outputs.get(MAIN)
    if rule.hold and (main is None or rule.output_type(main) is not MetricType.STATE):
        yield "hold", "must be left out unless the output's type is state: numbers are not held"
