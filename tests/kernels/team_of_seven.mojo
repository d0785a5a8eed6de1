"""Runs jobs with a team of seven on the runtime's few threads; raises if a share is lost or run twice.
"""

from std.ffi import external_call
from std.memory.alloc import unsafe_alloc
from std.time import perf_counter_ns
from mojo_kernels.team import (
    ABSENT,
    FIRST_STATE,
    SHARED_JOBS,
    STRIDE,
    Word,
    share_with_team,
    start_team,
)

comptime MEMBERS = 7
comptime SHARES = 9
comptime VALUES = 400
comptime SECONDS = 3


def add_one_to_all(values: Word) -> Bool:
    def work(share: Int) {imm}:
        for i in range(share * VALUES, (share + 1) * VALUES):
            values[unsafe_offset=i] = values[unsafe_offset=i] + 1

    return share_with_team(work, SHARES)


def sleep_us(microseconds: Int):
    _ = external_call["usleep", Int32](UInt32(microseconds))


def main() raises:
    var values = unsafe_alloc[Int64](VALUES * SHARES)
    for i in range(VALUES * SHARES):
        values[unsafe_offset=i] = 0
    if add_one_to_all(values):
        raise Error("there is a team before one was started")
    var team = Word(unsafe_from_address=start_team(MEMBERS))
    var end = perf_counter_ns() + SECONDS * 1_000_000_000
    var rounds = 0
    while perf_counter_ns() < end:
        if not add_one_to_all(values):
            raise Error("there is no team after one was started")
        rounds += 1
        if rounds % 100 == 0:  # on both sides of what members wait for work
            sleep_us(150 + rounds // 100 % 120)
    for i in range(VALUES * SHARES):
        if Int(values[unsafe_offset=i]) != rounds:
            raise Error(
                "value ",
                i,
                " is ",
                values[unsafe_offset=i],
                " after ",
                rounds,
                " rounds",
            )
    if team[unsafe_offset=SHARED_JOBS] == 0:
        raise Error("no member came in ", rounds, " rounds")
    sleep_us(100_000)
    for m in range(MEMBERS):
        var state = team[unsafe_offset=FIRST_STATE + m * STRIDE]
        if state != ABSENT:
            raise Error("member ", m, " is still there: ", state)
    print(rounds, "rounds,", team[unsafe_offset=SHARED_JOBS], "with members")
