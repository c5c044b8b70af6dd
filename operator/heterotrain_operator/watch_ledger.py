"""Whether the watches deliver what there is to deliver.

A watch that is silent may be fine, since nothing happened, or dead; bookmarks do not reach handlers. So what lists show
is compared with what the watch delivered: an object's version that a list showed must come by the watch too, soon. What
stays away from list to list makes the *lag* grow, whatever else is delivered. A quiet cluster has none, and none grows
while lists fail. Pure; times are given in seconds of one clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Version(NamedTuple):
    """One state of one object. Versions are compared for equality only, as the API allows."""

    uid: str
    resource_version: str


def version_of(metadata: Mapping[str, Any]) -> Version:
    """The version of the object that this metadata is of."""
    return Version(metadata["uid"], metadata["resourceVersion"])


class _Missing(NamedTuple):
    """What one list showed first, and another showed last, while the watch had not brought it."""

    first: float
    last: float


@dataclass(slots=True)
class WatchLedger:
    """For one kind of object. `scope` tells which objects a list covers: the jobs of a namespace, the pods of a job."""

    started: float
    """Before the first event the watch counts as having delivered then."""
    _last_event: float | None = None
    _delivered: dict[str, dict[str, str]] = field(default_factory=dict)
    _missing: dict[str, dict[str, _Missing]] = field(default_factory=dict)

    @property
    def scopes(self) -> tuple[str, ...]:
        """Scopes that the watch has brought objects of, and that were not all deleted."""
        return tuple(self._delivered)

    def delivered(self, scope: str, version: Version, *, deleted: bool, now: float) -> None:
        """The watch brought an event of an object. `deleted`: it is gone, or in the scope no more."""
        self._last_event = now
        known = self._delivered.setdefault(scope, {})
        if deleted:
            known.pop(version.uid, None)
        else:
            known[version.uid] = version.resource_version
        # Whatever version it brought: it is alive for this object, and brings newer ones in their order.
        self._missing.get(scope, {}).pop(version.uid, None)
        if not known:
            self.forget(scope)

    def listed(self, scope: str, versions: Iterable[Version], now: float) -> None:
        """A list showed just these objects in the scope."""
        shown = {version.uid: version.resource_version for version in versions}
        known = self._delivered.get(scope, {})
        before = self._missing.get(scope, {})
        # Not delivered yet, in another version, or gone without a word.
        away = {uid for uid in shown.keys() | known.keys() if shown.get(uid) != known.get(uid)}
        self._missing[scope] = {uid: _Missing(before[uid].first if uid in before else now, now) for uid in away}
        if not self._missing[scope] and not known:
            self.forget(scope)

    def forget(self, scope: str) -> None:
        """The scope is gone, with all that it held."""
        self._delivered.pop(scope, None)
        self._missing.pop(scope, None)

    def lag(self) -> float:
        """For how long the watch is known to have withheld something that lists showed."""
        spans = [away.last - away.first for scope in tuple(self._missing.values()) for away in tuple(scope.values())]
        return max(spans, default=0.0)

    def age(self, now: float) -> float:
        """Time since the last event."""
        return now - (self.started if self._last_event is None else self._last_event)
