"""The two ways in which a script's part of a job ends badly: it asks for what cannot be, or a peer is gone."""

from __future__ import annotations

from heterotrain_api.contract import ExitCode


class HeterotrainError(Exception):
    """Base of the errors that a script may catch."""


class UsageError(HeterotrainError):
    """The script, or its environment, asks for something that cannot be. Says what, and what to do instead."""


class LeftJobError(SystemExit):
    """Told to end, or drained, this process has left the job, whose others go on, and ends without error.

    A `SystemExit` for the same reasons as `PeerLostError`. `handed_in`: the gradient of its last grant is in a version.
    """

    def __init__(self, reason: str, *, handed_in: bool = False) -> None:
        super().__init__(int(ExitCode.SUCCEEDED))
        self.reason = reason
        self.handed_in = handed_in

    def __str__(self) -> str:
        return self.reason


class PeerLostError(SystemExit):
    """The coordinator or a parameter server is gone, or has dismissed this worker; the process must end.

    A `SystemExit`, so that a script's ``except Exception`` does not go on without its job, no traceback hides the
    reason, and the process ends with the exit code given. `shard`: the parameter server that is gone, if it is one.
    `again`: the job goes back to a checkpoint, so the script begins anew, in this very process, once it has ended.
    """

    def __init__(
        self, reason: str, exit_code: ExitCode = ExitCode.PEER_LOST, *, shard: str = "", again: bool = False
    ) -> None:
        super().__init__(int(exit_code))
        self.reason = reason
        self.shard = shard
        self.again = again

    def __str__(self) -> str:
        return self.reason
