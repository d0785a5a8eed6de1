"""A team of threads that wait for work where it will come: even ops of some microseconds are shared.

The runtime's own `sync_parallelize` takes 12 microseconds and more until both halves of a job are
done; a decode step is a hundred ops of 5 to 30 microseconds, so that it could not use a second
core at all. A member of the team is a task of the runtime's pool that keeps its thread for a while:
it looks at one word of memory until a job's address appears there, runs what is left of the job, and
leaves after `IDLE_NS` without one or `STAY_NS` in all, so that the thread is the runtime's again. A
job that finds a member absent sends for it and goes on; nobody waits for a member that has not begun.

The shares of a job are claimed one by one, by its owner as well: whoever is late finds less to do.
Each thread begins with the shares that are its CPU's, the same in every step, whose weights and
states its caches may still hold. Who runs which share changes no bits, as no value depends on the cut.

State of a member, one word: absent, present (looking, or on its way), running, or the address of
the job that it shall take. Owners write an address over absent or present only; members write
the other three. An owner takes its address back when the work is done before the member begins.
"""

from std.atomic import Atomic
from std.builtin._coroutine import (
    AnyCoroutine,
    _coro_destroy_fn,
    _coro_resume_fn,
)
from std.ffi import external_call
from std.memory import stack_allocation
from std.memory.alloc import unsafe_alloc
from std.sys import llvm_intrinsic
from std.sys.info import CompilationTarget
from std.time import perf_counter_ns

comptime Word = Pointer[Int64, MutUntrackedOrigin]
"""A word that several threads read and write."""
comptime NAME = StaticString("coachwhip.team.1")
"""Name of the process's team in the runtime's table of globals. The number is that of the layout of
its words and of `Job`, which graphs compiled apart from each other must agree on."""
comptime STRIDE = 16
"""Words from one member's state to the next: two cache lines, which are fetched together."""
comptime MEMBER_CODE = 0
"""Word with the address of `member`."""
comptime MEMBER_COUNT = 1
"""Word with the number of members."""
comptime SHARED_JOBS = STRIDE
"""Word with the number of jobs that a member took part in; apart from the two above, which all read."""
comptime FIRST_STATE = 2 * STRIDE
"""Word with the state of the first member."""
comptime MOST_MEMBERS = 255
"""Most threads that help the one that runs an op."""
comptime MOST_SHARES = 1024
"""Most shares of a job."""
comptime IDLE_NS = 200_000
"""Nanoseconds without work after which a member gives its thread back."""
comptime STAY_NS = 5_000_000
"""Nanoseconds after which it does though there is work: the runtime may have some as well."""
comptime LOOKS = 256
"""Looks at a word, some microseconds in all, before a member without work lets another thread run."""
comptime PATIENCE = 16
"""Times as many for an owner whose work is done, but for what a member has begun."""

comptime ABSENT = Int64(0)
"""No task of this member exists."""
comptime PRESENT = Int64(1)
"""The member looks for work, or is on its way."""
comptime RUNNING = Int64(2)
"""The member has taken a job."""


struct Job:
    """Work that members are asked to take part in."""

    var parts: Pointer[AnyCoroutine, MutUntrackedOrigin]
    """One coroutine for each member that is asked."""
    var begun: Int64
    """Members that came."""
    var ended: Int64
    """Members that will not touch the job again."""

    def __init__(out self, parts: Pointer[AnyCoroutine, MutUntrackedOrigin]):
        """Creates a job.

        Args:
            parts: One coroutine for each member that is asked.
        """
        self.parts = parts
        self.begun = 0
        self.ended = 0


comptime JobAddress = Pointer[Job, MutUntrackedOrigin]
"""Where a job is; its owner waits until no member needs it."""


@always_inline
def pause():
    """Tells the core that this thread is waiting for another one."""
    comptime if CompilationTarget.is_x86():
        llvm_intrinsic["llvm.x86.sse2.pause", NoneType]()


@always_inline
def give_way():
    """Lets another thread run on this core, if one wants to."""
    _ = external_call["sched_yield", Int32]()


def take(state: Word) -> Bool:
    """Takes the job that a member is asked for, if there is one.

    Args:
        state: The member's state.

    Returns:
        Whether there was one; it is done.
    """
    var seen = Atomic[Int64].load(state)
    if seen <= RUNNING or not Atomic[Int64].compare_exchange(
        state, seen, RUNNING
    ):
        return False
    var job = JobAddress(unsafe_from_address=Int(seen))
    var index = Atomic[Int64].fetch_add(Pointer(to=job[].begun), Int64(1))
    _coro_resume_fn(job[].parts[unsafe_offset=Int(index)])
    Atomic[Int64].store(state, PRESENT)
    # The last touch: the owner's stack may be gone after it.
    _ = Atomic[Int64].fetch_add(Pointer(to=job[].ended), Int64(1))
    return True


def member(state: Word):
    """Takes jobs until none has come for a while, or the stay is over.

    Args:
        state: The member's state.
    """
    var came = perf_counter_ns()
    var fed = came
    while True:
        for _ in range(LOOKS):
            if take(state):
                fed = perf_counter_ns()
            else:
                pause()
        var now = perf_counter_ns()
        if now - fed > IDLE_NS or now - came > STAY_NS:
            var expected = PRESENT
            if Atomic[Int64].compare_exchange(state, expected, ABSENT):
                return
        give_way()


def find_team() -> Int:
    """Looks the process's team up.

    Returns:
        Its address, 0 when there is none.
    """
    return external_call["KGEN_CompilerRT_GetGlobalOrNull", Int](
        NAME.unsafe_ptr(), NAME.byte_length()
    )


def start_team(members: Int) -> Int:
    """Creates the process's team, once; its members come when there is work.

    The code of `member` must stay loaded as long as the process lives. Not for two threads at a time.

    Args:
        members: Threads that help the one that runs an op, at most `MOST_MEMBERS`.

    Returns:
        The team's address.
    """
    var found = find_team()
    if found != 0:
        return found
    var count = max(0, min(members, MOST_MEMBERS))
    var length = FIRST_STATE + count * STRIDE
    var words = unsafe_alloc[Int64](length, alignment=128)
    for i in range(length):
        words[unsafe_offset=i] = 0
    comptime code = member
    var address = code
    words[unsafe_offset=MEMBER_CODE] = Int64(
        Pointer(to=address).unsafe_bitcast[Int]()[]
    )
    words[unsafe_offset=MEMBER_COUNT] = Int64(count)
    external_call["KGEN_CompilerRT_InsertGlobal", NoneType](NAME, Int(words))
    return Int(words)


def ask(team: Word, state: Word, here: Int64) -> Bool:
    """Asks a member to take part in a job, and sends for it where it is absent.

    Args:
        team: The team.
        state: The member's state.
        here: The job's address.

    Returns:
        Whether it was asked; not if it has another job.
    """
    var seen = Atomic[Int64].load(state)
    while seen <= PRESENT:
        if Atomic[Int64].compare_exchange(state, seen, here):
            if seen == ABSENT:
                external_call["KGEN_CompilerRT_AsyncRT_Execute", NoneType](
                    Int(team[unsafe_offset=MEMBER_CODE]), state, Int(-1)
                )
            return True
    return False


@always_inline
def first_share(shares: Int, members: Int) -> Int:
    """Returns the share with which a thread begins.

    Args:
        shares: Number of shares.
        members: Members of the team.

    Returns:
        The first share of the CPU that runs this thread; 0 where the operating system does not say.
    """
    comptime if CompilationTarget.is_linux():
        var cpu = Int(external_call["sched_getcpu", Int32]())
        return cpu % (members + 1) * shares // (members + 1)
    else:
        return 0


@always_inline
def claim(claims: Pointer[mut=True, Int64, ...], share: Int) -> Bool:
    """Claims a share, unless another thread has.

    Args:
        claims: For each share 0, or 1 once it is claimed.
        share: The share.

    Returns:
        Whether it is this thread's now.
    """
    var state = claims.unsafe_offset(share)
    var free = Int64(0)
    return Atomic[Int64].load(state) == 0 and Atomic[Int64].compare_exchange(
        state, free, Int64(1)
    )


def share_with_team[Work: def(Int) -> None](work: Work, shares: Int) -> Bool:
    """Calls `work(i)` for `i` in `[0, shares)`, on this thread and on members that come in time.

    Parameters:
        Work: Type of the function.

    Args:
        work: What to do for a share. Must not raise.
        shares: Number of shares, at most `MOST_SHARES`.

    Returns:
        False when the process has no team; nothing was done then.
    """
    var address = find_team()
    if address == 0:
        return False
    var team = Word(unsafe_from_address=address)
    var members = Int(team[unsafe_offset=MEMBER_COUNT])
    var wanted = min(shares - 1, members)
    var parts = stack_allocation[MOST_MEMBERS, AnyCoroutine]()
    var asked = stack_allocation[MOST_MEMBERS, Int32]()
    var job = Job(parts.unsafe_origin_cast[MutUntrackedOrigin]())
    var here = JobAddress(unsafe_from_address=Int(Pointer(to=job)))

    var claims = stack_allocation[MOST_SHARES, Int64]()
    for i in range(shares):
        claims[unsafe_offset=i] = 0

    # A coroutine that never suspends, only because its handle can be kept in memory: a function
    # that captures cannot. The runtime's own parallel loops do the same.
    __async def part() capturing -> None:
        var at = first_share(shares, members)
        for _ in range(shares):
            if claim(claims, at):
                work(at)
            at = at + 1 if at + 1 < shares else 0

    var count = 0
    var at = first_share(shares, members)
    for _ in range(shares):
        # Again before each share of this thread: members may be done with other jobs by then.
        for m in range(members):
            if count == wanted:
                break
            var state = team.unsafe_offset(FIRST_STATE + m * STRIDE)
            if Atomic[Int64].load(state) > PRESENT:
                continue  # it has a job, maybe this one
            var coroutine = part()
            coroutine._set_noop_callback()
            parts[unsafe_offset=count] = coroutine^._take_handle()
            if ask(team, state, Int64(Int(here))):
                asked[unsafe_offset=count] = Int32(m)
                count += 1
            else:
                _coro_destroy_fn(parts[unsafe_offset=count])
        if claim(claims, at):
            work(at)
        at = at + 1 if at + 1 < shares else 0
    var came = Int64(0)
    for a in range(count):
        var expected = Int64(Int(here))
        if not Atomic[Int64].compare_exchange(
            team.unsafe_offset(
                FIRST_STATE + Int(asked[unsafe_offset=a]) * STRIDE
            ),
            expected,
            PRESENT,
        ):
            came += 1
    var looks = 0
    while Atomic[Int64].load(Pointer(to=here[].ended)) < came:
        looks += 1
        if looks % (PATIENCE * LOOKS) == 0:
            give_way()
        else:
            pause()
    for a in range(count):
        _coro_destroy_fn(parts[unsafe_offset=a])
    if came > 0:
        _ = Atomic[Int64].fetch_add(team.unsafe_offset(SHARED_JOBS), Int64(1))
    # Members read these through the coroutine until the wait is over, which the compiler cannot see.
    _ = job
    _ = here
    _ = claims
    _ = members
    _ = shares
    return True
