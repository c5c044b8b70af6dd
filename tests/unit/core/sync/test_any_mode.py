"""What holds in every mode, whatever happens in whatever order: see `builders_sync.World` for what is checked."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from builders_sync import World, examples, randomly
from heterotrain_core.synchronization import (
    Asp,
    Backup,
    Bsp,
    Delay,
    Discount,
    DiscountKind,
    Dssp,
    Normalization,
    Ssp,
    Synchronization,
)

BOUNDS = st.none() | st.integers(0, 4)
WINDOWS = st.none() | st.sampled_from([0.0, 0.5, 3.0])
DISCOUNTS = st.sampled_from(
    [Discount(), Discount(DiscountKind.POLYNOMIAL, 0.5), Discount(DiscountKind.STALENESS_AWARE)]
)
NORMALIZATIONS = st.sampled_from(Normalization)
MODES: st.SearchStrategy[Synchronization] = st.one_of(
    st.just(Bsp()),
    st.builds(Asp, DISCOUNTS, NORMALIZATIONS),
    st.builds(Ssp, BOUNDS, DISCOUNTS),
    st.builds(Dssp, st.integers(0, 3), st.integers(0, 4)),
    st.builds(Delay, WINDOWS, BOUNDS, DISCOUNTS, NORMALIZATIONS),
    st.builds(Delay, st.just(0.5), st.integers(0, 4)),
    st.builds(Backup, st.integers(0, 3)),
)
SHARES = st.lists(st.integers(0, 5), min_size=4, max_size=4)


class Anything(RuleBasedStateMachine):
    """Four workers, of which some come and go while bounds change."""

    def begin(self, world: World, limit: int | None = None) -> None:
        self.world, self.limit = world, limit
        self.gone = {3}
        self.world.leave(3)
        self.world.join(0, 1, 2)

    @precondition(lambda self: self.world.ready())
    @rule(which=st.integers(0, 3), seconds=st.sampled_from([0.0, 0.1, 1.0]), refused=st.integers(0, 9))
    def done(self, which: int, seconds: float, refused: int) -> None:
        ready = self.world.ready()
        self.world.now += seconds
        self.world.done(ready[which % len(ready)], refused=refused == 0)

    @precondition(lambda self: self.world.policy.next_timer is not None)
    @rule()
    def timer(self) -> None:
        self.world.tick()

    @precondition(lambda self: self.world.present)
    @rule(which=st.integers(0, 3))
    def leave(self, which: int) -> None:
        worker = sorted(self.world.present)[which % len(self.world.present)]
        self.gone.add(worker)
        self.world.leave(worker)

    @precondition(lambda self: self.gone)
    @rule(which=st.integers(0, 3))
    def join(self, which: int) -> None:
        worker = sorted(self.gone)[which % len(self.gone)]
        self.gone.remove(worker)
        self.world.join(worker)

    @rule(bound=BOUNDS, window=WINDOWS)
    def other_bound(self, bound: int | None, window: float | None) -> None:
        match self.world.policy.synchronization:
            case Ssp():
                self.world.synchronize(Ssp(bound))
            case Dssp():
                self.world.synchronize(Dssp(bound or 0, 2))
            case Delay():
                self.world.synchronize(Delay(window, bound))
            case _:
                pass

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world, choose = self.world, randomly(len(self.world.decisions))
        world.finish(choose)
        if world.policy.end_reason is None:
            # Nobody that is there has a share: with one worker that has one, the job goes on to its end.
            world.leave(0)
            world.join(0)
            world.plan([2, 0, 0, 0])
            world.finish(choose)
        assert world.policy.end_reason is not None
        if self.limit is None or len(world.commits) < self.limit:
            assert world.used == world.all_samples()
        else:
            assert len(world.commits) == self.limit
        # Whoever computed in vain (Backup) may still say so.
        while ready := world.ready():
            world.done(ready[0])


class AnyMode(Anything):
    """Workers are drained too, plan and mode change, short epochs end."""

    @initialize(
        mode=MODES, shares=SHARES, size=st.integers(1, 60), epochs=st.integers(1, 3), ahead=st.integers(0, 2),
        limit=st.none() | st.integers(1, 20), least=st.integers(1, 3),
    )  # fmt: skip
    def start(
        self,
        mode: Synchronization,
        shares: list[int],
        size: int,
        epochs: int,
        ahead: int,
        limit: int | None,
        least: int,
    ) -> None:
        world = World(mode, shares, dataset_size=size, epochs=epochs, rounds_ahead=ahead, max_rounds=limit, least=least)
        self.begin(world, limit)

    @precondition(lambda self: self.world.policy.live)
    @rule(which=st.integers(0, 3))
    def drain(self, which: int) -> None:
        live = self.world.policy.live
        self.world.drain(live[which % len(live)])

    @rule(shares=SHARES, mode=st.none() | MODES)
    def plan(self, shares: list[int], mode: Synchronization | None) -> None:
        self.world.plan(shares, mode)

    @rule(mode=MODES)
    def synchronize(self, mode: Synchronization) -> None:
        self.world.synchronize(mode)


class AnyBound(Anything):
    """Delay and SSP in a long epoch, so that workers get far ahead before the bound is lowered."""

    @initialize(delay=st.booleans(), bound=BOUNDS, shares=st.lists(st.integers(1, 3), min_size=4, max_size=4))
    def start(self, delay: bool, bound: int | None, shares: list[int]) -> None:
        self.begin(World(Delay(0.0, bound) if delay else Ssp(bound), shares, dataset_size=200))


TestAnyMode = AnyMode.TestCase
TestAnyMode.settings = settings(max_examples=examples(25), stateful_step_count=30)
TestAnyBound = AnyBound.TestCase
TestAnyBound.settings = settings(max_examples=examples(25), stateful_step_count=40)
