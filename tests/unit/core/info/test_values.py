"""Entities, selectors and templates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterotrain_core.info.selectors import label_matches, matches, places_of, render, template_faults
from heterotrain_core.info.values import Entity, is_metric_name


@pytest.mark.parametrize(
    ("text", "kind", "namespace", "parts"),
    [
        ("node/worker-1.example", "node", None, ("worker-1.example",)),
        ("pod/ns/p-0", "pod", "ns", ("ns", "p-0")),
        ("worker/ns/job/cpu-0", "worker", "ns", ("ns", "job", "cpu-0")),
        ("link/a/b", "link", None, ("a", "b")),
        ("widget/x:1/y@z", "widget", None, ("x:1", "y@z")),
    ],
)
def test_an_entity_has_kind_and_parts(text: str, kind: str, namespace: str | None, parts: tuple[str, ...]) -> None:
    entity = Entity(text)
    assert (entity, entity.kind, entity.namespace, entity.parts) == (text, kind, namespace, parts)
    assert Entity(entity) == entity


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("", "write kind/name"),
        ("node", "write kind/name"),
        ("Node/a", "write kind/name"),
        ("node/", "write node/NAME"),
        ("node/a/b", "write node/NAME"),
        ("pod/a", "write pod/NAMESPACE/NAME"),
        ("worker/ns/job", "write worker/NAMESPACE/JOB/NAME"),
        ("link/a/", "write link/FROM/TO"),
        ("node/-a", "beginning and ending with a letter or digit"),
        ("node/a b", "write node/NAME"),
        ("node/../x", "write node/NAME"),
        ("x/1/2/3/4/5/6", "write x/NAME"),
        ("node/" + "a" * 600, "write kind/name"),
    ],
)
def test_another_text_is_refused_with_the_form_that_is_allowed(text: str, form: str) -> None:
    with pytest.raises(ValueError, match=form):
        Entity(text)


@given(st.text(max_size=40))
def test_any_text_is_an_entity_or_refused(text: str) -> None:
    try:
        entity = Entity(text)
    except ValueError:
        return
    assert f"{entity.kind}/{'/'.join(entity.parts)}" == text


@pytest.mark.parametrize(
    ("glob", "entity", "want"),
    [
        ("*", "pod/ns/p", True), ("", "pod/ns/p", True), ("pod", "pod/ns/p", True), ("pod", "podx/a", False),
        ("pod/ns/*", "pod/ns/p", True), ("pod/*", "pod/ns/p", False), ("pod/**", "pod/ns/p", True),
        ("pod/*/p-*", "pod/ns/p-1", True), ("pod/ns/p", "pod/ns/p2", False), ("node/a.b", "node/axb", False),
    ],
)  # fmt: skip
def test_a_glob_means_entities(glob: str, entity: str, want: bool) -> None:
    assert matches(glob, entity) is want


@pytest.mark.parametrize(
    ("glob", "text", "want"),
    [("a", "a", True), ("a|b", "b", True), ("!a|b", "b", False), ("!a|b", "c", True), ("*x*", "axb", True),
     ("!*x*", "axb", False), ("", "", True), ("!", "", False), ("!", "a", True), ("*", "", True),
     ("a.c", "abc", False)],
)  # fmt: skip
def test_a_glob_means_labels(glob: str, text: str, want: bool) -> None:
    assert label_matches(glob, text) is want


@pytest.mark.parametrize(
    ("template", "want"),
    [
        ("node/{instance|host}", "node/n1"),
        ("node/{fqdn|short|lower}", "node/big"),
        ("x/{v6|host}", "x/::1"),
        ("node/{empty}", None),
        ("node/{missing}", None),
        ("plain", "plain"),
    ],
)
def test_templates_are_filled_in_or_give_nothing(template: str, want: str | None) -> None:
    labels = {"instance": "n1:9100", "fqdn": "BIG.example.org", "empty": "", "v6": "[::1]:9100"}
    assert template_faults(template) is None
    assert render(template, labels) == want


def test_places_of_an_entity() -> None:
    assert places_of(Entity("pod/ns/p"), {"node": "a"}) == {"kind": "pod", "1": "ns", "2": "p", "label:node": "a"}


@pytest.mark.parametrize(
    ("text", "want"), [("a_b:c1", True), ("1a", False), ("a-b", False), ("", False), ("a" * 129, False)]
)
def test_names_of_metrics(text: str, want: bool) -> None:
    assert is_metric_name(text) is want
