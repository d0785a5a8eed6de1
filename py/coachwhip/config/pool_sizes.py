"""How many slots and pages there are: as many as help, as far as memory allows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from ..errors import ConfigError
from .decisions import DecisionLog
from .memory_room import DRAFT_MODEL_SHARE, Room
from .options import MOST_IDS, EngineOptions
from .quantity import shown_bytes
from .row_bytes import RowBytes


@dataclass(frozen=True)
class Demand:
    """What a pool needs.

    Attributes:
        row_bytes: Bytes of a slot or page; 0 for a model that has none.
        least: Rows without which not all can run that was asked for.
        most: Rows beyond which more do not help.
        given: Rows that the user asked for, or None.
    """

    row_bytes: int
    least: int
    most: int
    given: int | None

    @property
    def given_bytes(self) -> int:
        return self.row_bytes * (self.given or 0)

    def rows(self, size: int) -> int:
        """Returns how many rows there are where so many bytes are left for them."""
        if not self.row_bytes:
            return 0
        if self.given is not None:
            return self.given
        return min(self.most, size // self.row_bytes, MOST_IDS)


@dataclass(frozen=True)
class Needs:
    """What slots and pages are for: requests of up to `length` tokens, `live` slots each."""

    seqs: int
    live: int
    length: int
    page_size: int
    block: int
    cached: bool

    def slots(self, row_bytes: int, given: int | None) -> Demand:
        """Returns the demand for slots: live ones, and with caching a checkpoint for each grid
        point of each request."""
        least = self.seqs * self.live
        most = least + (self.seqs * (self.length // self.block) if self.cached else 0)
        return Demand(row_bytes, least, most, given)

    def pages(self, row_bytes: int, given: int | None) -> Demand:
        """Returns the demand for pages: at least one request of full length, at most all of them,
        and with caching as many pages again."""
        one = -(-self.length // self.page_size)
        return Demand(row_bytes, one, one * self.seqs * (2 if self.cached else 1), given)


def resolve_pools(
    needs: Needs,
    row_bytes: RowBytes,
    options: EngineOptions,
    room: Room,
    log: DecisionLog,
) -> tuple[int, int]:
    """Resolves `num_state_slots` and `num_kv_pages`.

    What memory the user left open is shared out: both pools get their least, then each gets half
    of the room, and what the other does not need.

    Args:
        needs: What they are for.
        row_bytes: Bytes of a slot and of a page.
        options: What the user set.
        room: Their memory.
        log: Gets the decisions.

    Raises:
        ConfigError: A number was given that is too large, too small, or of no use; or not even the
            least fits.
    """
    slots = needs.slots(row_bytes.slot.total, options.num_state_slots)
    pages = needs.pages(row_bytes.page, options.num_kv_pages)
    _check_given(needs, slots, pages, room)
    total = room.total
    if room.counts_given:
        total -= slots.given_bytes + pages.given_bytes
    open_slots, open_pages = (
        d if d.given is None else replace(d, row_bytes=0) for d in (slots, pages)
    )
    least = [d.row_bytes * d.least for d in (open_slots, open_pages)]
    each = min(room.each, total)
    if max(least) > each or sum(least) > total:
        raise _too_little(needs, open_slots, open_pages, options, room, each, total)
    most_pages = open_pages.row_bytes * open_pages.most
    for_slots = min(max(total // 2, total - most_pages, least[0]), each, total - least[1])
    num_slots = slots.rows(for_slots)
    num_pages = pages.rows(min(each, total - num_slots * open_slots.row_bytes))
    _tell(needs, slots, pages, num_slots, num_pages, room, log)
    return num_slots, num_pages


def _check_given(needs: Needs, slots: Demand, pages: Demand, room: Room) -> None:
    """Raises unless the numbers that the user gave are of use, and fit."""
    for name, demand, layers in (
        ("num_state_slots", slots, "Mamba"),
        ("num_kv_pages", pages, "attention"),
    ):
        if demand.given is None:
            continue
        if not demand.row_bytes:
            raise ConfigError(
                f"no_{layers.lower()}",
                name,
                demand.given,
                f"unset for a model without {layers} layers",
                "leave it out",
            )
        if demand.given_bytes > room.most:
            most = room.most // demand.row_bytes
            raise ConfigError(
                "memory",
                name,
                demand.given,
                f"at most {most}: each takes {shown_bytes(demand.row_bytes)} of "
                f"{shown_bytes(room.most)}",
                f"give {most} or less" if most else "give more cache_memory",
            )
    if pages.given is not None and pages.given < pages.least:
        raise ConfigError(
            "too_few_pages",
            "num_kv_pages",
            pages.given,
            f"at least {pages.least}, for one request of max_model_len = {needs.length} tokens in "
            f"pages of {needs.page_size}",
            f"give {pages.least}, or max_model_len = {pages.given * needs.page_size}",
        )
    both = slots.given_bytes + pages.given_bytes
    if both > room.most:
        raise ConfigError(
            "memory",
            "num_state_slots",
            slots.given,
            f"at most {(room.most - pages.given_bytes) // slots.row_bytes} beside num_kv_pages = "
            f"{pages.given}: together they take {shown_bytes(both)} of {shown_bytes(room.most)}",
            "give less of either",
        )


def _too_little(
    needs: Needs,
    slots: Demand,
    pages: Demand,
    options: EngineOptions,
    room: Room,
    each: int,
    total: int,
) -> ConfigError:
    """Returns the error where memory has no room for the least that is needed."""
    page_least, slot_least = (d.row_bytes * d.least for d in (pages, slots))
    if options.cache_memory is not None:
        least = page_least + slot_least + (room.total - total)
        parts = [f"{shown_bytes(slot_least)} for {slots.least} slots"] * bool(slot_least)
        parts += [f"{shown_bytes(page_least)} for the pages of one request"] * bool(page_least)
        if room.draft_model is not None:
            least = ceil(least / (1 - DRAFT_MODEL_SHARE))
            parts.append("a quarter of it for the draft model")
        return ConfigError(
            "memory",
            "cache_memory",
            shown_bytes(room.total + (room.draft_model or 0)),
            f"at least {least:,} bytes: {' and '.join(parts)}",
            f"give {-(-least // 2**20)}MiB, or less of max_num_seqs or max_model_len",
        )
    if page_least > min(each, total):
        most = max(0, min(each, total)) // pages.row_bytes * needs.page_size
        return ConfigError(
            "memory",
            "max_model_len",
            needs.length,
            f"at most {most}: the pages of one request need {shown_bytes(page_least)}, more than "
            f"{room.told}",
            f"give max_model_len = {most}, or num_kv_pages or cache_memory"
            if most > 1
            else _NO_ROOM,
        )
    most = min(each, total - page_least) // (slots.row_bytes * needs.live)
    beside = f" beside {shown_bytes(page_least)} of pages" if page_least else ""
    return ConfigError(
        "memory",
        "max_num_seqs",
        needs.seqs,
        f"at most {most}: each running request needs {needs.live} slots of "
        f"{shown_bytes(slots.row_bytes)}{beside}, more than {room.told}",
        f"give max_num_seqs = {most}, or num_state_slots or cache_memory" if most else _NO_ROOM,
    )


_NO_ROOM = "give cache_memory, a smaller model or a machine with more memory"


def _tell(
    needs: Needs,
    slots: Demand,
    pages: Demand,
    num_slots: int,
    num_pages: int,
    room: Room,
    log: DecisionLog,
) -> None:
    name = "num_state_slots"
    if not slots.row_bytes:
        log.add("no_slots", name, 0, "the model has no Mamba layers")
    elif slots.given is not None:
        log.add("slots_given", name, num_slots, "as asked for")
        seqs = needs.seqs
        if num_slots < seqs:
            log.warn(
                "slots_below_sequences",
                name,
                num_slots,
                f"{name} is {num_slots}, so at most {num_slots} requests run at a time, not "
                f"max_num_seqs = {seqs}; give {name} = {seqs}, or more to keep checkpoints",
            )
        elif needs.live <= num_slots < slots.least:
            log.warn(
                "slots_below_drafts",
                name,
                num_slots,
                f"{name} is {num_slots}, so not all of max_num_seqs = {seqs} requests can verify "
                f"{needs.live - 1} drafts at a time; give {name} = {slots.least}, or more to keep "
                "checkpoints",
            )
    else:
        reason = f"{needs.live} for each of {needs.seqs} requests"
        if needs.cached:
            reason += f", and {num_slots - slots.least} checkpoints"
            cut = num_slots < slots.most
            reason += (
                f", as many as {room.told} holds" if cut else f", one each {needs.block} tokens"
            )
        log.add("slots_sized", name, num_slots, reason)
    name = "num_kv_pages"
    if not pages.row_bytes:
        log.add("no_pages", name, 0, "the model has no attention layers")
    elif pages.given is not None:
        log.add("pages_given", name, num_pages, "as asked for")
    else:
        reason = f"{needs.seqs} requests of {needs.length} tokens"
        reason += ", and as many again for prefixes" if needs.cached else ""
        if num_pages < pages.most:
            reason = f"as many as {room.told} holds, for {num_pages * needs.page_size} tokens"
        log.add("pages_sized", name, num_pages, reason)
