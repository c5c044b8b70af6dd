from __future__ import annotations

from dataclasses import replace

import pytest

from heterotrain_api.conditions import Reason
from heterotrain_operator.job.outcome import Outcome, State
from heterotrain_operator.local.cause import Cause, Exit, Kind
from heterotrain_operator.local.decide import (
    End,
    Limits,
    Observed,
    Progress,
    Restart,
    Verdict,
    Wait,
    decide,
)

LIMITS = Limits(
    startup_seconds=120, collect_seconds=2, leave_seconds=6, linger_seconds=10, stop_seconds=15, silence_seconds=60
)
TRAINING = Observed(
    now=100.0,
    job_started=0.0,
    workers_started=5.0,
    running=("ps-0", "coordinator", "cpu-0", "cpu-1"),
    progress=Progress.TRAINING,
    state_seen=99.8,
)
STARTING = replace(TRAINING, progress=Progress.STARTING, absent=frozenset({"cpu-1"}))
SUCCEEDED = Outcome(state=State.SUCCEEDED, reason="Completed", message="3 epochs", rounds=9, samples=72)
FAILED = Outcome(state=State.FAILED, reason="WorkerLost", message="worker cpu-1 is lost")
TOLD = Outcome(state=State.FAILED, reason="WorkerFailed", message="worker cpu-1 failed: ValueError: x")
STOPPED = Outcome(state=State.STOPPED, reason="StopRequested", message="stopped by the user")


def ended(name: str, kind: Kind, code: int, seconds: float, **more: object) -> Exit:
    return Exit(name=name, kind=kind, code=code, seconds=seconds, **more)  # type: ignore[arg-type]


def failed(reason: str, message: str, process: str = "") -> End:
    return End(state=State.FAILED, cause=Cause(reason=reason, message=message, process=process))


RAISED = ended("cpu-1", Kind.WORKER, 1, 99.0, last_line="ValueError: x")
RAISED_END = failed(Reason.WORKER_FAILED, "worker cpu-1 exited with code 1: ValueError: x", "cpu-1")
LEFT = ended("cpu-1", Kind.WORKER, 0, 95.0)


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(TRAINING, Wait(), id="all is well"),
        pytest.param(STARTING, Wait(), id="workers may take their time to join"),
        pytest.param(
            replace(TRAINING, exits=(RAISED,)),
            Wait(),
            id="after a failure the others' exits are collected for a moment",
        ),
        pytest.param(replace(TRAINING, exits=(RAISED,), now=101.0), RAISED_END, id="then the job has failed"),
        pytest.param(
            replace(TRAINING, exits=(RAISED,), running=()), RAISED_END, id="at once if nobody is left to wait for"
        ),
        pytest.param(
            replace(TRAINING, outcome=FAILED, outcome_seen=90.0),
            failed("WorkerLost", "worker cpu-1 is lost", "coordinator"),
            id="the coordinator's failure counts if no process tells more",
        ),
        pytest.param(
            replace(TRAINING, outcome=TOLD, outcome_seen=95.0, lost=frozenset({"cpu-1"})),
            Wait(),
            id="a worker that has told its error is on its way out: its exit code is waited for a little longer",
        ),
        pytest.param(
            replace(TRAINING, outcome=TOLD, outcome_seen=93.0, lost=frozenset({"cpu-1"})),
            failed(Reason.WORKER_FAILED, "worker cpu-1 failed: ValueError: x", "cpu-1"),
            id="but not for ever",
        ),
        pytest.param(
            replace(
                TRAINING,
                outcome=TOLD,
                outcome_seen=95.0,
                lost=frozenset({"cpu-1"}),
                exits=(RAISED,),
                running=("ps-0", "cpu-0"),
            ),
            RAISED_END,
            id="once it is out nothing more is waited for",
        ),
        pytest.param(
            replace(TRAINING, outcome=FAILED, outcome_seen=90.0, lost=frozenset({"cpu-1"})),
            failed("WorkerLost", "worker cpu-1 is lost", "cpu-1"),
            id="a lost worker that has not ended: its log is the one to read",
        ),
        pytest.param(
            replace(TRAINING, outcome=FAILED, outcome_seen=99.5, exits=(RAISED,)),
            Wait(),
            id="the moment begins with the first sign of failure",
        ),
        pytest.param(
            replace(TRAINING, exits=(replace(RAISED, told=True),)),
            Wait(),
            id="an exit that was asked for is no failure",
        ),
        pytest.param(
            replace(TRAINING, outcome=SUCCEEDED, outcome_seen=95.0),
            Wait(),
            id="after the good end the processes may finish",
        ),
        pytest.param(
            replace(TRAINING, outcome=SUCCEEDED, outcome_seen=99.0, running=()),
            End(state=State.SUCCEEDED, cause=Cause(reason="Completed", message="3 epochs")),
            id="succeeded when the last process has ended",
        ),
        pytest.param(
            replace(TRAINING, outcome=SUCCEEDED, outcome_seen=80.0),
            End(state=State.SUCCEEDED, cause=Cause(reason="Completed", message="3 epochs")),
            id="succeeded too if a process lingers: the outcome is the coordinator's",
        ),
        pytest.param(
            replace(TRAINING, outcome=SUCCEEDED, outcome_seen=99.0, running=(), exits=(RAISED,)),
            End(state=State.SUCCEEDED, cause=Cause(reason="Completed", message="3 epochs")),
            id="a script that fails after its goodbye does not undo the model",
        ),
        pytest.param(
            replace(
                TRAINING,
                outcome=STOPPED,
                outcome_seen=99.0,
                running=(),
                exits=(ended("coordinator", Kind.COORDINATOR, 3, 99.0),),
            ),
            End(state=State.STOPPED, cause=Cause(reason="StopRequested", message="stopped by the user")),
            id="stopped by command: exit code 3 of the coordinator is no failure",
        ),
        pytest.param(
            replace(TRAINING, exits=(ended("coordinator", Kind.COORDINATOR, 0, 90.0),)),
            failed(Reason.COORDINATOR_FAILED, "the coordinator ended without leaving an outcome", "coordinator"),
            id="a coordinator that ends without a word",
        ),
        pytest.param(
            replace(TRAINING, exits=(ended("ps-0", Kind.PS, 0, 95.0),)),
            Wait(),
            id="shards may leave a little before the coordinator",
        ),
        pytest.param(
            replace(TRAINING, exits=(ended("ps-0", Kind.PS, 0, 85.0),)),
            failed(Reason.SHARD_FAILED, "parameter server ps-0 ended before the job did", "ps-0"),
            id="a shard that leaves in the middle",
        ),
        pytest.param(
            replace(STARTING, exits=(LEFT,)),
            failed(
                Reason.WORKER_FAILED,
                "worker cpu-1 ended without joining the job; does its script call heterotrain.join()?",
                "cpu-1",
            ),
            id="a script that never joins would be waited for in vain",
        ),
        pytest.param(
            replace(STARTING, exits=(LEFT,), state_seen=94.0),
            Wait(),
            id="whether it joined is judged by a state newer than its end",
        ),
        pytest.param(replace(TRAINING, exits=(LEFT,)), Wait(), id="a worker that joined and ended well"),
        pytest.param(
            replace(STARTING, now=126.0),
            failed(
                Reason.WAITING_FOR_WORKERS,
                "the workers were not ready within 120 s (not joined: cpu-1); --startup-seconds gives them longer",
                "cpu-1",
            ),
            id="workers that do not become ready",
        ),
        pytest.param(
            replace(STARTING, now=126.0, absent=frozenset(), standing="waiting for the model of cpu-0"),
            failed(
                Reason.WAITING_FOR_WORKERS,
                "the workers were not ready within 120 s (all have joined, but have not agreed on the model: "
                "waiting for the model of cpu-0); "
                "--startup-seconds gives them longer",
            ),
            id="workers that join and go no further",
        ),
        pytest.param(
            replace(STARTING, now=121.0, workers_started=None, starting="ps-1"),
            failed(Reason.WAITING_FOR_WORKERS, "ps-1 was not ready within 120 s (--startup-seconds)", "ps-1"),
            id="a shard that does not come up",
        ),
        pytest.param(replace(TRAINING, now=9000.0), Wait(), id="training may take as long as it likes"),
        pytest.param(
            replace(TRAINING, silent_since=39.0),
            failed(Reason.COORDINATOR_UNREACHABLE, "the coordinator has not answered for 60 s", "coordinator"),
            id="a coordinator that lives and does not answer",
        ),
        pytest.param(
            replace(TRAINING, interrupts=1, interrupted=99.0), Wait(), id="asked to stop: the model is being saved"
        ),
        pytest.param(
            replace(STARTING, interrupts=1, interrupted=99.9),
            End(
                state=State.STOPPED,
                cause=Cause(reason=Reason.STOPPED, message="stopped by the user before a model was saved"),
            ),
            id="asked to stop before training began: nothing to save",
        ),
        pytest.param(
            replace(TRAINING, interrupts=1, interrupted=84.0),
            End(
                state=State.STOPPED,
                cause=Cause(reason=Reason.STOPPED, message="stopped by the user before a model was saved"),
            ),
            id="asked to stop and nothing happens",
        ),
        pytest.param(
            replace(TRAINING, interrupts=1, interrupted=98.0, outcome=STOPPED, outcome_seen=99.0, running=()),
            End(state=State.STOPPED, cause=Cause(reason="StopRequested", message="stopped by the user")),
            id="asked to stop, model saved",
        ),
        pytest.param(
            replace(TRAINING, interrupts=1, interrupted=98.0, outcome=SUCCEEDED, outcome_seen=99.0, running=()),
            End(state=State.SUCCEEDED, cause=Cause(reason="Completed", message="3 epochs")),
            id="asked to stop when it was done anyway",
        ),
        pytest.param(
            replace(TRAINING, interrupts=1, interrupted=98.0, exits=(RAISED,), now=120.0),
            End(
                state=State.STOPPED,
                cause=Cause(reason=Reason.STOPPED, message="stopped by the user before a model was saved"),
            ),
            id="who fails while being stopped was stopped",
        ),
        pytest.param(
            replace(TRAINING, interrupts=2, interrupted=99.0),
            End(
                state=State.STOPPED,
                cause=Cause(reason=Reason.STOPPED, message="stopped at once by the user; the model was not saved"),
                at_once=True,
            ),
            id="asked twice: at once",
        ),
    ],
)
def test_decide(seen: Observed, want: Verdict) -> None:
    assert decide(seen, LIMITS) == want


def test_states_have_the_exit_codes_of_the_contract() -> None:
    assert {state: int(state.exit_code) for state in State} == {
        State.SUCCEEDED: 0,
        State.FAILED: 1,
        State.STOPPED: 3,
    }


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            '{"state": "Succeeded", "reason": "Completed", "rounds": 3, "samples": 24, "reported": {"accuracy": 0.5},'
            ' "model": "m", "message": null}',
            Outcome(
                state=State.SUCCEEDED, reason="Completed", rounds=3, samples=24, reported={"accuracy": 0.5}, model="m"
            ),
            id="a whole outcome",
        ),
        pytest.param('{"state": "Failed"}', Outcome(state=State.FAILED), id="the least"),
    ],
)
def test_outcome_is_read(text: str, want: Outcome) -> None:
    assert Outcome.from_json(text) == want


@pytest.mark.parametrize("text", ["", '{"state": "Fail', "[]", '{"state": "Odd"}', '{"reason": "x"}'])
def test_what_is_no_outcome_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Outcome.from_json(text)


RECOVERING = replace(LIMITS, restarts=2)
KILLED = ended("ps-1", Kind.PS, -9, 99.0)
AGAIN = Restart(
    name="ps-1",
    why="parameter server ps-1 was killed by SIGKILL; not by this runner: if nobody did it by hand, the machine may be "
    "out of memory",
)


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(replace(TRAINING, exits=(KILLED,)), AGAIN, id="a lost parameter server is started again at once"),
        pytest.param(
            replace(TRAINING, exits=(ended("ps-1", Kind.PS, 0, 99.0),)),
            Restart(name="ps-1", why="parameter server ps-1 exited with code 0"),
            id="so is one that was told to end by somebody else",
        ),
        pytest.param(
            replace(TRAINING, exits=(ended("coordinator", Kind.COORDINATOR, 1, 99.0),)),
            Restart(name="coordinator", why="the coordinator exited with code 1"),
            id="so is the coordinator, if it left no outcome",
        ),
        pytest.param(replace(TRAINING, exits=(KILLED,), restarts=1), AGAIN, id="up to the limit"),
        pytest.param(
            replace(TRAINING, exits=(KILLED,), restarts=2, now=102.0),
            failed(Reason.SHARD_FAILED, AGAIN.why, "ps-1"),
            id="beyond it the job has failed",
        ),
        pytest.param(
            replace(TRAINING, exits=(KILLED,), workers_started=None, now=102.0),
            failed(Reason.SHARD_FAILED, AGAIN.why, "ps-1"),
            id="not while the job is being started",
        ),
        pytest.param(
            replace(TRAINING, exits=(KILLED,), outcome=FAILED, outcome_seen=99.0, now=102.0),
            failed(Reason.SHARD_FAILED, AGAIN.why, "ps-1"),
            id="not once the coordinator has given the job up",
        ),
        pytest.param(
            replace(TRAINING, exits=(replace(KILLED, told=True),)), Wait(), id="not one that the runner has told to end"
        ),
        pytest.param(replace(TRAINING, exits=(RAISED,)), Wait(), id="no worker: its script may fail again"),
    ],
)
def test_what_is_lost_is_started_again_where_there_are_checkpoints(seen: Observed, want: Verdict) -> None:
    assert decide(seen, RECOVERING) == want


KILLED = ended("cpu-1", Kind.WORKER, -9, 99.0)
CUT_OFF = ended("cpu-1", Kind.WORKER, 4, 99.0)
ELASTIC = replace(LIMITS, rejoins=2)
KILLED_WORDS = (
    "worker cpu-1 was killed by SIGKILL; not by this runner: if nobody did it by hand, the machine may be out of memory"
)


@pytest.mark.parametrize(
    ("seen", "want"),
    [
        pytest.param(
            replace(TRAINING, exits=(KILLED,)), Restart(name="cpu-1", why=KILLED_WORDS), id="killed by a signal"
        ),
        pytest.param(
            replace(STARTING, exits=(KILLED,)), Restart(name="cpu-1", why=KILLED_WORDS), id="before training too"
        ),
        pytest.param(
            replace(TRAINING, exits=(CUT_OFF,)),
            Restart(name="cpu-1", why="worker cpu-1 exited with code 4"),
            id="it has lost the others, who are well",
        ),
        pytest.param(replace(STARTING, exits=(CUT_OFF,)), Wait(), id="not if it was not let in at the start"),
        pytest.param(
            replace(TRAINING, exits=(KILLED,), rejoins={"cpu-1": 1, "cpu-0": 2}),
            Restart(name="cpu-1", why=KILLED_WORDS),
            id="as often as each worker may be lost",
        ),
        pytest.param(
            replace(TRAINING, exits=(KILLED,), rejoins={"cpu-1": 2}, running=()),
            failed(Reason.WORKER_FAILED, KILLED_WORDS, "cpu-1"),
            id="and no more often",
        ),
        pytest.param(replace(TRAINING, exits=(RAISED,), now=101.0), RAISED_END, id="a script's error is one"),
        pytest.param(
            replace(TRAINING, exits=(KILLED,), unwanted=frozenset({"cpu-1"})), Wait(), id="nor if it is one too many"
        ),
        pytest.param(replace(TRAINING, exits=(replace(KILLED, told=True),)), Wait(), id="nor if it was told to"),
        pytest.param(
            replace(TRAINING, exits=(KILLED,), outcome=SUCCEEDED, outcome_seen=99.5), Wait(), id="nor once all is over"
        ),
    ],
)
def test_a_lost_worker_is_started_again_and_a_failed_one_is_not(seen: Observed, want: Verdict) -> None:
    assert decide(seen, ELASTIC) == want
