"""Contexts: what follows from their place when asked for is what it would be if it were given."""

import pickle

from parley.core.context import Context, Position, Secrets, recipient_root
from parley.core.key import Key
from parley.training.stack import ContextStack

ROUND, ROOT = Key(3).fold("round", 2), b"r" * 16
PLACE = Position(2, "losses", 1, ROUND, ROOT)


def given(name: str) -> Context:
    return Context(name, 2, "losses", 1, ROUND.fold("recipient", name), Secrets(ROOT, (2, "losses", 1), name))


def facts(context: Context) -> tuple[object, ...]:
    where = (context.id, context.round, context.asked, context.exchange)
    return *where, context.round_key, context.key, context.secrets.bytes("x", 8)


def test_keys_and_secrets_are_derived_from_the_place():
    for name in ("a", "client \x1f7", "party:shuffler"):
        assert facts(PLACE.context(name)) == facts(given(name))


def test_secrets_are_those_of_the_root_that_a_node_is_given():
    alone = Context(
        "a", 2, "losses", 1, ROUND.fold("recipient", "a"), Secrets(recipient_root(ROOT, "a"), (2, "losses", 1))
    )
    assert PLACE.context("a").secrets.bytes("x", 8) == alone.secrets.bytes("x", 8)


def test_a_context_is_the_same_in_another_process_and_takes_no_key_of_the_round_there():
    packed = pickle.dumps(PLACE.context("a"))
    assert facts(pickle.loads(packed)) == facts(given("a"))
    assert ROUND.digest not in packed


def test_what_lies_below_has_randomness_of_its_own():
    below = PLACE.context("a").below("channel", 0)
    assert below.round_key == ROUND.fold("recipient", "a").fold("channel", 0)
    assert len({below.key, PLACE.context("a").key, PLACE.context("a").below("channel", 1).key}) == 3
    assert below.secrets.bytes("x", 8) != PLACE.context("a").secrets.bytes("x", 8)


def test_a_stack_of_contexts_has_the_keys_of_each():
    stack = ContextStack((PLACE.context("a"), PLACE.context("b")))
    assert stack.key.keys == (given("a").key, given("b").key)
    assert stack.round_key.keys == (given("a").round_key, given("b").round_key)
