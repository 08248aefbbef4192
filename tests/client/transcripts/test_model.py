"""Turns: how lists grow, are rewound, and come back as what each call was sent."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toktier_stream.client.transcripts.model import Format, Growth, Transcript, Turn, turns

ROLES = st.sampled_from(["user", "assistant", "tool"])
STEPS = st.lists(st.one_of(ROLES, st.integers(0, 6)), max_size=30)


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def transcript(growth: Growth) -> Transcript:
    return Transcript("t", Format.MESSAGES, growth.finish())


@given(STEPS)
def test_turns_are_what_each_call_was_sent(steps: list[str | int]) -> None:
    """Against a twin that copies the whole list wherever a model call begins."""
    growth, current, expected = Growth(), [], []

    def snapshot() -> None:
        if current and (not expected or expected[-1] != current):
            expected.append(list(current))

    for number, step in enumerate(steps):
        if isinstance(step, int):
            growth.rewind(step)
            del current[step:]
        else:
            if step == "assistant":
                snapshot()
            growth.add(message(step, str(number)))
            current.append(message(step, str(number)))
    snapshot()
    assert list(turns(transcript(growth))) == expected


def test_a_call_begins_before_each_answer() -> None:
    """Two answers make two calls, and the whole conversation comes last."""
    growth = Growth()
    for role in ("system", "user", "assistant", "tool", "assistant"):
        growth.add(message(role, role))
    lengths = [len(call) for call in turns(transcript(growth))]
    assert lengths == [2, 4, 5]


def test_a_rewind_keeps_what_stood_before() -> None:
    """After a rewind the turn says how many messages of the previous call remain."""
    growth = Growth()
    for role in ("system", "user", "assistant", "user", "assistant"):
        growth.add(message(role, role))
    growth.rewind(1)
    growth.add(message("user", "again"))
    finished = growth.finish()
    assert finished[-1] == Turn(1, (message("user", "again"),))


def test_replacing_keeps_the_common_start() -> None:
    """Lists logged whole become turns that keep what they share."""
    growth = Growth()
    growth.replace([message("user", "a"), message("tool", "long")])
    growth.replace([message("user", "a"), message("tool", "short"), message("user", "b")])
    assert [turn.keep for turn in growth.finish()] == [0, 1]


def test_lists_of_different_calls_are_independent() -> None:
    """Changing a list that was handed out changes no other."""
    growth = Growth()
    for role in ("user", "assistant", "tool", "assistant"):
        growth.add(message(role, role))
    calls = turns(transcript(growth))
    first = next(calls)
    first.clear()
    assert [m["role"] for m in next(calls)] == ["user", "assistant", "tool"]
