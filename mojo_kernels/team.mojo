"""A team of threads that wait for work where it will come: even ops of some microseconds are shared.

The runtime's own `sync_parallelize` takes 12 microseconds and more until both halves of a job are
done; a decode step is a hundred ops of 5 to 30 microseconds, so that it could not use a second
core at all. A member of the team is a task of the runtime's pool that keeps its thread for a while:
it looks at one word of memory until a job's address appears there, runs what is left of the job, and
leaves after `IDLE_NS` without one, so that the thread is the runtime's again. A job that finds a
member absent sends for it and goes on; nobody waits for a member that has not begun.

The shares of a job are claimed one by one, by its owner as well: whoever is late finds less to do.
The cut into shares depends on the job alone, so who runs them changes no bits.

A spinning thread is never placed anew by the operating system, so a member could share a core with
the op's own thread for as long as the process lives, and be of no use. One that finds itself there
moves to another core.

State of a member, one word: absent, present (looking, or on its way), running, or the address of
the job that it shall take. Owners write an address over present or absent only; members write
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
comptime NAME = StaticString("coachwhip.team")
"""Name of the process's team in the runtime's table of globals."""
comptime STRIDE = 16
"""Words from one member's state to the next: two cache lines, which are fetched together."""
comptime MOST_MEMBERS = 63
"""Most threads that help the one that runs an op."""
comptime IDLE_NS = 200_000
"""Nanoseconds without work after which a member gives its thread back."""
comptime CPU_SET_WORDS = 16
"""Words of a set of CPUs, as the C library has it."""
comptime MOST_CPUS = Int64(1 << 16)
"""More than any CPU's number."""
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
    """One coroutine for each member that may come."""
    var begun: Int64
    """Members that came."""
    var ended: Int64
    """Members that will not touch the job again."""

    def __init__(out self, parts: Pointer[AnyCoroutine, MutUntrackedOrigin]):
        """Creates a job.

        Args:
            parts: One coroutine for each member.
        """
        self.parts = parts
        self.begun = 0
        self.ended = 0


@always_inline
def pause():
    """Tells the core that this thread is waiting for another one."""
    comptime if CompilationTarget.is_x86():
        llvm_intrinsic["llvm.x86.sse2.pause", NoneType]()


@always_inline
def give_way():
    """Lets another thread run on this core, if one wants to."""
    _ = external_call["sched_yield", Int32]()


@always_inline
def this_cpu() -> Int64:
    """Looks up where this thread runs.

    Returns:
        The number of the CPU; 0 where the operating system does not say.
    """
    comptime if CompilationTarget.is_linux():
        return Int64(external_call["sched_getcpu", Int32]())
    else:
        return 0


def leave_cpu(cpu: Int64):
    """Moves this thread to another CPU, if it may run on another one.

    Args:
        cpu: Where it runs.
    """
    comptime if CompilationTarget.is_linux():
        var allowed = stack_allocation[CPU_SET_WORDS, Int64]()
        var others = stack_allocation[CPU_SET_WORDS, Int64]()
        comptime BYTES = CPU_SET_WORDS * 8
        if cpu < 0 or cpu >= BYTES * 8:
            return
        if external_call["sched_getaffinity", Int32](
            Int32(0), Int(BYTES), allowed
        ):
            return
        for i in range(CPU_SET_WORDS):
            others[unsafe_offset=i] = allowed[unsafe_offset=i]
        others[unsafe_offset=Int(cpu) // 64] &= ~(Int64(1) << (cpu % 64))
        # Refused where no CPU is left. The wider set brings no thread back by itself.
        if not external_call["sched_setaffinity", Int32](
            Int32(0), Int(BYTES), others
        ):
            _ = external_call["sched_setaffinity", Int32](
                Int32(0), Int(BYTES), allowed
            )


def member(state: Word):
    """Takes jobs until none has come for a while.

    Args:
        state: The member's state. The word after it is kept for the member, and holds the address
            of the word that tells of the newest job.
    """
    var newest = Word(unsafe_from_address=Int(state[unsafe_offset=1]))
    var known = Atomic[Int64].load(newest)
    var since = perf_counter_ns()
    while True:
        for _ in range(LOOKS):
            var seen = Atomic[Int64].load(state)
            if seen > RUNNING:
                if Atomic[Int64].compare_exchange(state, seen, RUNNING):
                    var job = Pointer[Job, MutUntrackedOrigin](
                        unsafe_from_address=Int(seen)
                    )
                    var index = Atomic[Int64].fetch_add(
                        Pointer(to=job[].begun), Int64(1)
                    )
                    _coro_resume_fn(job[].parts[unsafe_offset=Int(index)])
                    Atomic[Int64].store(state, PRESENT)
                    # The last touch: the owner's stack may be gone after it.
                    _ = Atomic[Int64].fetch_add(
                        Pointer(to=job[].ended), Int64(1)
                    )
                    since = perf_counter_ns()
            else:
                pause()
        var posted = Atomic[Int64].load(newest)
        if posted != known:
            known = posted
            var cpu = this_cpu()
            if cpu == posted % MOST_CPUS:
                leave_cpu(cpu)
        if perf_counter_ns() - since > IDLE_NS:
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
    var count = min(members, MOST_MEMBERS)
    var words = unsafe_alloc[Int64]((count + 1) * STRIDE, alignment=128)
    for i in range((count + 1) * STRIDE):
        words[unsafe_offset=i] = 0
    comptime code = member
    var address = code
    words[unsafe_offset=0] = Int64(Pointer(to=address).unsafe_bitcast[Int]()[])
    words[unsafe_offset=1] = Int64(count)
    for m in range(count):
        words[unsafe_offset=(m + 1) * STRIDE + 1] = Int64(
            Int(words.unsafe_offset(3))
        )
    external_call["KGEN_CompilerRT_InsertGlobal", NoneType](NAME, Int(words))
    return Int(words)


def share_with_team[Work: def(Int) -> None](work: Work, shares: Int) -> Bool:
    """Calls `work(i)` for `i` in `[0, shares)`, on this thread and on members that come in time.

    Parameters:
        Work: Type of the function.

    Args:
        work: What to do for a share. Must not raise.
        shares: Number of shares.

    Returns:
        False when the process has no team; nothing was done then.
    """
    var team = find_team()
    if team == 0:
        return False
    var words = Word(unsafe_from_address=team)
    var members = Int(words[unsafe_offset=1])
    var wanted = min(shares - 1, members)
    var next = Int64(0)
    var counter = Pointer(to=next)

    # A coroutine that never suspends, only because its handle can be kept in memory: a function
    # that captures cannot. The runtime's own parallel loops do the same.
    __async def part() capturing -> None:
        while True:
            var i = Atomic[Int64].fetch_add(counter, Int64(1))
            if i >= Int64(shares):
                return
            work(Int(i))

    # Counts jobs above the number of the CPU; two owners at a time may lose a count.
    var newest = words.unsafe_offset(3)
    Atomic[Int64].store(
        newest,
        (Atomic[Int64].load(newest) // MOST_CPUS + 1) * MOST_CPUS + this_cpu(),
    )
    var parts = stack_allocation[MOST_MEMBERS, AnyCoroutine]()
    var asked = stack_allocation[MOST_MEMBERS, Int64]()
    var job = Job(parts.unsafe_origin_cast[MutUntrackedOrigin]())
    var here = Int64(Int(Pointer(to=job)))
    var count = 0
    for m in range(members):
        if count == wanted:
            break
        var state = words.unsafe_offset((m + 1) * STRIDE)
        var seen = Atomic[Int64].load(state)
        if seen > PRESENT:
            continue
        var coroutine = part()
        coroutine._set_noop_callback()
        parts[unsafe_offset=count] = coroutine^._take_handle()
        if Atomic[Int64].compare_exchange(state, seen, here):
            if seen == ABSENT:
                external_call["KGEN_CompilerRT_AsyncRT_Execute", NoneType](
                    Int(words[unsafe_offset=0]), state, Int(-1)
                )
            asked[unsafe_offset=count] = Int64(m)
            count += 1
        else:
            _coro_destroy_fn(parts[unsafe_offset=count])
    while True:
        var i = Atomic[Int64].fetch_add(counter, Int64(1))
        if i >= Int64(shares):
            break
        work(Int(i))
    var came = Int64(0)
    for a in range(count):
        var expected = here
        if not Atomic[Int64].compare_exchange(
            words.unsafe_offset((Int(asked[unsafe_offset=a]) + 1) * STRIDE),
            expected,
            PRESENT,
        ):
            came += 1
    var looks = 0
    while Atomic[Int64].load(Pointer(to=job.ended)) < came:
        looks += 1
        if looks % (PATIENCE * LOOKS) == 0:
            give_way()
        else:
            pause()
    for a in range(count):
        _coro_destroy_fn(parts[unsafe_offset=a])
    if came > 0:
        _ = Atomic[Int64].fetch_add(words.unsafe_offset(2), Int64(1))
    return True
