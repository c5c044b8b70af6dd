"""Rules as resources, without I/O: what the book makes of them, packs, statuses and the REST API's desk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from heterotrain_api.validation import InvalidManifestError
from heterotrain_core.info.values import Entity, Sample
from heterotrain_operator.errors import ApiError, ApiUnreachableError
from heterotrain_operator.info.cluster import book as book_module
from heterotrain_operator.info.cluster.book import TOO_MANY, RuleBook
from heterotrain_operator.info.cluster.desk import ClusterDesk
from heterotrain_operator.info.cluster.following import Follower
from heterotrain_operator.info.cluster.pack_rules import PACK_LABEL, keep_packs, pack_changes, pack_documents
from heterotrain_operator.info.cluster.status_writer import WRITES_PER_PASS, StatusWriter
from heterotrain_operator.info.rule_state import RuleKind
from heterotrain_operator.rest.desk import (
    DeskUnavailableError,
    GenerationConflictError,
    NoSuchRuleError,
    RuleExistsError,
)
from support.fake_rule_kube import FakeRuleKube, make_document
from support.info_world import START, World
from support.virtual_time import run_virtual

COLLECT, PROCESS = RuleKind.COLLECT, RuleKind.PROCESS
ANSWER = ApiError(503, "Down", "away")


def spec(target: str = "twice", source: str = "load", expression: str = "2 * x") -> dict[str, Any]:
    chain = [{"operator": "expr", "expression": expression}]
    return {"inputs": {"x": {"metric": source}}, "chain": chain, "output": {"metric": target}}


def push_spec(*metrics: str) -> dict[str, Any]:
    return {"source": {"push": {"entities": ["node/*"]}}, "metrics": [{"name": name} for name in metrics]}


class Stage:
    """All parts over a fake API server, in virtual time."""

    def __init__(self) -> None:
        self.world = World()
        self.kube = FakeRuleKube()
        self.book = RuleBook(self.world.service)
        self.desk = ClusterDesk(self.kube, self.book, self.world.service)
        self.now = START
        self.writer = StatusWriter(self.kube, self.book, lambda: self.now)

    def see(self, kind: RuleKind, name: str, spec: dict[str, Any], **metadata: Any) -> None:
        self.book.saw(kind, make_document(kind, name, spec, **metadata))

    def make(self, kind: RuleKind, name: str, spec: dict[str, Any]) -> None:
        """The rule is in the API server, and seen."""
        self.book.saw(kind, self.kube.put(kind, make_document(kind, name, spec)))

    def push(self, value: float) -> None:
        self.world.service.push([Sample(Entity("node/a"), "load", START, value)])

    def error(self, kind: RuleKind, name: str) -> str:
        entry = self.book.entry(kind, name)
        assert entry is not None
        return entry.state.error

    def conditions(self, kind: RuleKind, name: str) -> list[str]:
        status = self.kube.rules[kind, name].get("status") or {"conditions": []}
        return [f"{c['type']} {c['status']} {c['reason']}" for c in status["conditions"]]

    def statuses(self) -> int:
        """Writes so far."""
        return sum(call.startswith("status") for call in self.kube.calls)


def play(story: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        await story(Stage())

    run_virtual(main())


def test_a_rule_is_obeyed_changed_and_forgotten() -> None:
    async def story(stage: Stage) -> None:
        stage.see(COLLECT, "in", push_spec("load"))
        stage.see(PROCESS, "p", spec())
        stage.push(3)
        assert stage.world.value("node/a", "twice") == 6
        changed = make_document(PROCESS, "p", spec(expression="3 * x"), generation=2)
        stage.book.saw(PROCESS, changed)
        # A watch that is late brings what was before.
        stage.see(PROCESS, "p", spec())
        assert stage.world.engine.rules()["p"].generation == 2
        stage.book.gone(PROCESS, make_document(PROCESS, "p", spec(), uid="another one of the name"))
        assert "p" in stage.world.engine.rules()
        stage.book.gone(PROCESS, changed)
        assert stage.world.engine.rules() == {}
        stage.book.listed(COLLECT, [])
        assert (stage.world.collector.rules(), stage.book.entries()) == ({}, [])

    play(story)


def test_a_rule_that_is_none_stops_no_other_and_is_obeyed_once_it_is_mended() -> None:
    async def story(stage: Stage) -> None:
        stage.see(PROCESS, "good", spec())
        stage.see(PROCESS, "bad", spec("other"))
        stage.see(PROCESS, "bad", spec("other", expression="y"), generation=2)
        assert stage.error(PROCESS, "bad").startswith("spec.chain[0].expression: unknown name 'y'")
        # It is the new version that counts: the one before is obeyed no longer.
        assert set(stage.world.engine.rules()) == {"good"}
        states = {state.name: (state.ready, state.accepted) for state in stage.world.service.states()}
        assert states == {"good": (True, True), "bad": (False, False)}
        stage.see(PROCESS, "bad", spec("other"), generation=3)
        assert set(stage.world.engine.rules()) == {"good", "bad"}
        assert [state.name for state in stage.world.service.states()] == ["good", "bad"]

    play(story)


def test_a_rule_that_makes_us_fail_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: Stage) -> None:
        set_rule = stage.world.service.set_rule

        def fail(rule: Any) -> Any:
            if rule.metadata.name == "a":
                raise ZeroDivisionError("ours")
            return set_rule(rule)

        monkeypatch.setattr(stage.world.service, "set_rule", fail)
        stage.book.listed(PROCESS, [make_document(PROCESS, name, spec(name)) for name in "ab"])
        assert [stage.error(PROCESS, name) for name in "ab"] == ["ZeroDivisionError: ours", ""]

    play(story)
    assert "not foreseen" in caplog.text


def test_there_may_be_so_many_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "MAX_RULES", 2)

    async def story(stage: Stage) -> None:
        documents = [make_document(PROCESS, name, spec(name)) for name in "abc"]
        stage.book.listed(PROCESS, documents)
        assert [stage.error(PROCESS, name) for name in "abc"] == ["", "", TOO_MANY]
        stage.book.listed(PROCESS, documents[1:])
        assert [stage.error(PROCESS, name) for name in "bc"] == ["", ""]

    play(story)


def test_a_list_comes_first_then_the_watch_then_a_list_again() -> None:
    async def story(stage: Stage) -> None:
        stage.kube.put(COLLECT, make_document(COLLECT, "in", push_spec("load")))
        late = make_document(PROCESS, "p", spec())
        rounds = 0

        def before(verb: str, name: str) -> None:
            nonlocal rounds
            if verb == "watch" and name == PROCESS:
                rounds += 1
                match rounds:
                    case 1:
                        stage.kube.watched = [("ADDED", late)]
                    case 2:
                        raise ApiError(410, "Expired", "too old")
                    case 3:
                        stage.kube.watched = [("DELETED", late)]
                    case 4:
                        raise ApiUnreachableError("broken")
                    case _:
                        raise asyncio.CancelledError

        stage.kube.before = before
        follower = Follower(stage.kube, stage.book, lambda: 0.5)
        # The fake's watches end at once, so the other kind's task must be given pauses.
        follower._missing.discard(COLLECT)
        with pytest.raises(asyncio.CancelledError):
            await follower._follow(PROCESS)
        assert follower.listed.is_set()
        assert stage.book.entry(PROCESS, "p") is None
        assert [call for call in stage.kube.calls if call.startswith("list")] == ["list process"] * 5

    play(story)


def test_statuses_are_written_once_and_then_only_when_they_say_something_else() -> None:
    async def story(stage: Stage) -> None:
        stage.make(COLLECT, "in", push_spec("load"))
        stage.make(PROCESS, "bad", spec(expression="y"))
        assert await stage.writer.write()
        assert stage.conditions(COLLECT, "in") == ["Accepted True Obeyed", "Ready Unknown WaitingForSamples"]
        assert stage.conditions(PROCESS, "bad") == ["Accepted False InvalidSpec", "Ready False InvalidSpec"]
        assert await stage.writer.write()
        assert stage.statuses() == 2
        stage.push(1)
        assert await stage.writer.write()
        assert stage.conditions(COLLECT, "in")[1] == "Ready True SamplesStored"
        stage.now += 30
        assert await stage.writer.write()
        assert stage.statuses() == 3
        stage.now += 40  # the sample is old by now
        assert await stage.writer.write()
        assert stage.statuses() == 4
        assert stage.kube.rules[COLLECT, "in"]["status"]["ageSeconds"] == 70

    play(story)


def test_after_a_restart_nothing_is_written_until_it_is_clear_that_nothing_comes() -> None:
    async def story(before: Stage) -> None:
        before.make(COLLECT, "in", push_spec("load"))
        before.push(1)
        assert await before.writer.write()
        after = Stage()
        after.kube = before.kube
        after.writer = StatusWriter(after.kube, after.book, lambda: after.now)
        after.book.listed(COLLECT, (await after.kube.list_rules(COLLECT))[0])
        after.now += 59
        assert await after.writer.write()
        assert after.conditions(COLLECT, "in")[1] == "Ready True SamplesStored"
        after.now += 1
        assert await after.writer.write()
        assert after.conditions(COLLECT, "in")[1] == "Ready Unknown WaitingForSamples"

    play(story)


def test_many_that_change_together_are_written_one_after_the_other() -> None:
    async def story(stage: Stage) -> None:
        for number in range(WRITES_PER_PASS + 3):
            stage.make(PROCESS, f"p-{number}", spec(f"m{number}"))
        assert await stage.writer.write()
        assert stage.statuses() == WRITES_PER_PASS
        assert await stage.writer.write()
        assert stage.statuses() == WRITES_PER_PASS + 3

    play(story)


def test_a_status_of_a_rule_that_is_gone_or_another_one_is_no_trouble() -> None:
    async def story(stage: Stage) -> None:
        for name in "abc":
            stage.make(PROCESS, name, spec(name))
        del stage.kube.rules[PROCESS, "a"]
        stage.kube.rules[PROCESS, "b"]["metadata"]["uid"] = "new"
        assert await stage.writer.write()
        assert stage.conditions(PROCESS, "c") == ["Accepted True Obeyed", "Ready Unknown WaitingForSamples"]

    play(story)


def test_statuses_wait_for_an_api_server_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def story(stage: Stage) -> None:
        def refuse(verb: str, _: str) -> None:
            raise ANSWER

        stage.make(PROCESS, "p", spec())
        stage.kube.before = refuse
        assert not await stage.writer.write()
        assert not await stage.writer.write()
        stage.kube.before = lambda _verb, _name: None
        assert await stage.writer.write()

    play(story)
    assert caplog.text.count("cannot be written") == 1


def test_packs_are_applied_and_those_switched_off_deleted_and_strangers_left_alone() -> None:
    wanted = pack_documents(["transfers", "derived-link"])
    assert [(kind, d["metadata"]) for kind, d in wanted] == [
        (COLLECT, {"name": "transfers", "labels": {PACK_LABEL: "transfers"}}),
        (PROCESS, {"name": "link", "labels": {PACK_LABEL: "derived-link"}}),
    ]
    ours = make_document(COLLECT, "trainer", {}, labels={PACK_LABEL: "trainer"})
    theirs = [make_document(PROCESS, "link", {}), make_document(PROCESS, "own", {})]
    changes = pack_changes(wanted, [(COLLECT, ours), *((PROCESS, document) for document in theirs)])
    assert [d["metadata"]["name"] for _, d in changes.apply] == ["transfers"]
    assert changes.delete == ((COLLECT, ours),)
    assert changes.strangers == ((PROCESS, "link"),)
    assert pack_documents(["transfers"], without=["transfers"]) == []
    with pytest.raises(ValueError, match="no rule pack 'gpus'"):
        pack_documents(["gpus"])


def test_a_pack_rule_that_somebody_changed_stays_and_the_others_are_kept() -> None:
    async def story(stage: Stage) -> None:
        def conflict(verb: str, name: str) -> None:
            if (verb, name) == ("apply", "transfers"):
                raise ApiError(409, "Conflict", "conflict with kubectl")

        stage.make(COLLECT, "trainer", push_spec("load"))
        stage.kube.rules[COLLECT, "trainer"]["metadata"]["labels"] = {PACK_LABEL: "trainer"}
        stage.book.listed(COLLECT, (await stage.kube.list_rules(COLLECT))[0])
        stage.kube.before = conflict
        await keep_packs(stage.kube, stage.book, pack_documents(["transfers", "derived-link"]))
        assert set(stage.kube.rules) == {(PROCESS, "link")}
        assert set(stage.world.engine.rules()) == {"link"}
        assert stage.world.collector.rules() == {}

    play(story)


def test_what_rest_writes_is_in_force_at_once() -> None:
    async def story(stage: Stage) -> None:
        made = await stage.desk.create(PROCESS, "p", spec())
        assert (made.generation, made.spec) == (1, spec())
        changed = await stage.desk.replace(PROCESS, "p", spec(expression="3 * x"), 1)
        assert changed.generation == 2
        assert stage.world.engine.rules()["p"].chain[0].parameters["expression"] == "3 * x"
        assert (stage.desk.get(PROCESS, "p"), stage.desk.rules(PROCESS)) == (changed, [changed])
        await stage.desk.delete(PROCESS, "p", 2)
        assert (stage.desk.get(PROCESS, "p"), stage.world.engine.rules()) == (None, {})

    play(story)


def test_a_write_that_meets_a_status_write_is_tried_again() -> None:
    async def story(stage: Stage) -> None:
        await stage.desk.create(PROCESS, "p", spec())
        times = 0

        def interfere(verb: str, name: str) -> None:
            nonlocal times
            if verb in ("update", "delete") and times < 2:
                times += 1
                stage.kube.put(PROCESS, {**stage.kube.rules[PROCESS, name], "status": {"samples": times}})

        stage.kube.before = interfere
        assert (await stage.desk.replace(PROCESS, "p", spec(expression="x"), 1)).generation == 2
        assert times == 2
        times = 0
        await stage.desk.delete(PROCESS, "p", 2)
        assert stage.kube.rules == {}

    play(story)


def test_what_rest_cannot_do_is_said() -> None:
    async def story(stage: Stage) -> None:
        await stage.desk.create(PROCESS, "p", spec())
        with pytest.raises(RuleExistsError):
            await stage.desk.create(PROCESS, "p", spec())
        with pytest.raises(GenerationConflictError) as raised:
            await stage.desk.replace(PROCESS, "p", spec(), 7)
        assert raised.value.present == 1
        with pytest.raises(GenerationConflictError):
            await stage.desk.delete(PROCESS, "p", 7)
        with pytest.raises(NoSuchRuleError):
            await stage.desk.replace(PROCESS, "q", spec(), 1)
        with pytest.raises(NoSuchRuleError):
            await stage.desk.delete(PROCESS, "q", None)
        with pytest.raises(InvalidManifestError, match="twice"):
            await stage.desk.create(PROCESS, "q", spec("twice"))
        command = {**push_spec("load"), "source": {"command": {"argv": ["id"]}}, "entity": [{"name": "node/a"}]}
        with pytest.raises(InvalidManifestError, match=r"spec\.source\.command: commands are not run in a cluster"):
            await stage.desk.create(COLLECT, "c", command)

    play(story)


@pytest.mark.parametrize(
    ("error", "want", "words"),
    [
        (ApiUnreachableError("timeout"), DeskUnavailableError, "the API server does not answer"),
        (ApiError(403, "Forbidden", "no"), DeskUnavailableError, "may not write rules"),
        (ApiError(500, "InternalError", "no"), DeskUnavailableError, "answers 500 InternalError"),
        (ApiError(422, "Invalid", "spec.chain: too long"), InvalidManifestError, "spec.chain: too long"),
        (ApiError(409, "Conflict", "again and again"), DeskUnavailableError, "written by others all the time"),
    ],
)
def test_the_api_servers_answers_in_rests_words(error: Exception, want: type[Exception], words: str) -> None:
    async def story(stage: Stage) -> None:
        def fail(verb: str, _: str) -> None:
            if verb in ("create", "update", "delete"):
                raise error

        stage.make(PROCESS, "p", spec())
        stage.kube.before = fail
        with pytest.raises(want, match=words):
            await stage.desk.replace(PROCESS, "p", spec(expression="x"), 1)
        with pytest.raises(want, match=words):
            await stage.desk.delete(PROCESS, "p", 1)

    play(story)
