"""A key server and a shuffler between clients and the server: who sent which row stays hidden (Yue et al., Figure 2).

    client       has a lasting X25519 key and tells its public half once (`enrol`)
    key server   draws one secret for all clients and seals it to each of them (`deal`); tells the server nothing of it
                 but the round's check key, from which the secret cannot be found
    shuffler     has a key of its own for every round (`begin`); alone opens what clients sealed for it in this round,
                 and forwards their rows in an order that it alone knows (`shuffle`)
    server       relays sealed bytes; receives rows without owners, and checks them (`checked_rows`)

Rows are bytes of one length. Each carries a random number and a tag under the round's check key, which the shuffler
does not have: a row that it altered or made up has a wrong tag, one that it sent twice the number of another, and one
that it dropped is missing in the count. Boxes are bound to the sender, the round and the shuffler's key of that round,
so that what was changed, sent again later or under another name is refused. The shuffler and the key server remember
the first public key that they saw of a client and accept no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import prod

import torch
from torch import Tensor

from parley.algorithms.exchange import Party, Question, Reply, ask, exchange
from parley.algorithms.protocol import Algorithm, Cohort, Contexts, Replies
from parley.core.context import Context
from parley.core.errors import InputError, QuorumError, WireError
from parley.core.form import Accepted, Form, Number
from parley.core.message import Memory, Message
from parley.core.sealed import KEY, KeyPair, about, derived, open_sealed, seal
from parley.core.tree import Tree
from parley.training.stack import Data
from parley.training.task import Task

KEY_SERVER = Party("key server")
SHUFFLER = Party("shuffler")
NUMBER, TAG = 16, 16
"""Bytes in front of every row: a random number, and the tag."""
_STOPPED = "The run stopped at its last checkpoint."
_log = logging.getLogger("parley")


@dataclass(frozen=True)
class Shared:
    """What the key server and all clients know, and neither the server nor the shuffler."""

    seed: bytes
    checks: bytes
    """From which the check key of every round follows."""

    @property
    def whole(self) -> bytes:
        return self.seed + self.checks

    @classmethod
    def of(cls, whole: bytes) -> Shared:
        return cls(whole[:KEY], whole[KEY:])

    def check_key(self, number: int) -> bytes:
        """Of one round; the server is told it."""
        return derived(self.checks, "rows", number)


@dataclass(frozen=True)
class Gathered:
    """What the server has after the shuffler."""

    rows: Tensor
    """[n, bytes], nobody's."""
    clients: tuple[str, ...]
    """Those whose rows are among them."""
    metrics: dict[str, float]
    dealt: Message
    """The key server's reply."""


class Parties(Algorithm):
    """The functions with which clients and parties answer; a method adds `client`, which seals its rows."""

    client: Callable[..., Reply]

    def row_width(self, task: Task) -> int | None:
        """Bytes of a row that `client` seals; a shuffler that is not told believes the server."""
        return None

    def _keys_form(self, task: Task, message: Message) -> Form:
        """Public keys of no more clients than there are."""
        keys = message.get("keys")
        if len(keys) > task.population:
            raise WireError(f"there are {len(keys)} keys for {task.population} clients.")
        return Form.of(keys=dict.fromkeys(keys, (torch.uint8, (KEY,))))

    def _boxes_form(self, task: Task, message: Message) -> Accepted:
        """A box for each key, and rows as wide as they are made: wider ones would leave a client's together."""
        boxes = message.get("boxes")
        form = Form.of(boxes=dict.fromkeys(boxes, (torch.uint8, (None,))), **self._keys_form(task, message))
        if boxes.keys() != message.get("keys").keys():
            raise WireError("the boxes are not those of the clients whose keys came with them.")
        width = self.row_width(task)
        least, most = (1, 2**31) if width is None else (width, width)
        return form.with_scalars(width=Number(int, least + NUMBER + TAG, most + NUMBER + TAG))

    def shuffled_rows(
        self, cohort: Cohort, number: int, message: Message, width: int
    ) -> Generator[Question, Replies, Gathered]:
        """`found = yield from self.shuffled_rows(...)`: the cohort is asked `client`, for rows of `width` bytes.

        Whoever has no memory yet is given the secret first; in round 1 that is everybody who has enrolled.
        """
        everybody = cohort.everyone if number == 1 and cohort.everyone else cohort.ids
        new = [client for client in everybody if cohort.since.get(client) is None]
        keys = {}
        if new:
            replies = yield ask(self.enrol, dict.fromkeys(new, Message()))
            keys = {client: reply.tensor("key") for client, reply in replies.items()}
        dealt = (yield ask(self.deal, {KEY_SERVER: Message.of(keys=keys)}))[KEY_SERVER]
        if boxes := dealt.get("boxes"):
            yield ask(self.keep, {client: Message.of(box=box) for client, box in boxes.items()})
        begun = (yield ask(self.begin, {SHUFFLER: Message()}))[SHUFFLER]
        without = [client for client in keys if client not in boxes]
        message = message.replace(shuffler=begun.tensor("key"))
        replies = yield ask(self.client, {client: message for client in cohort.ids if client not in without})
        forwarded = (yield ask(self.shuffle, {SHUFFLER: boxes_for_shuffler(replies, width)}))[SHUFFLER]
        refused = refused_clients(forwarded) | dict.fromkeys(without, "the key server knows it by another public key.")
        for client, why in refused.items():
            _log.warning("round %d went on without client '%s': %s", number, client, why)
        counts = {client: int(reply.number("rows")) for client, reply in replies.items() if client not in refused}
        if not counts:
            raise QuorumError(f"round {number}: the shuffler refused every client. {_STOPPED}")
        rows = checked_rows(forwarded, counts, dealt.tensor("check"), number)
        return Gathered(rows, tuple(counts), {"refused": len(refused)} if refused else {}, dealt)

    @exchange(
        form=lambda self, task, message: Form.of(key=(torch.uint8, (KEY,))),
        accepts=lambda self, task, message: Form(),
        asks="everyone",
        stack=False,
    )
    def enrol(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """A client's public key."""
        assert isinstance(context, Context)
        return Reply(Message.of(key=_tensor(own_key(context).public)))

    @exchange(asks=KEY_SERVER, accepts=lambda self, task, message: self._keys_form(task, message))
    def deal(self, task: Task, message: Message, memory: Memory, context: Context) -> Reply:
        """The key server: the secret, sealed to each public key of the message, and the round's check key."""
        shared = _drawn(context)
        keys = message.get("keys")
        known = _first_keys(memory, keys)
        boxes = {
            client: seal(
                shared.whole, _bytes(key), about("secret", context.round, client), context.secrets.bytes(client, KEY)
            )
            for client, key in keys.items()
            if torch.equal(known[client], key)
        }
        check = shared.check_key(context.round)
        return Reply(
            Message.of(boxes={client: _tensor(box) for client, box in boxes.items()}, check=_tensor(check)),
            Memory.of(keys=known),
        )

    @exchange(
        form=lambda self, task, message: Form(),
        accepts=lambda self, task, message: Form.of(box=(torch.uint8, (None,))),
        reads="nothing",
        asks="everyone",
        stack=False,
    )
    def keep(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """A client opens what the key server dealt to it, and keeps it."""
        assert isinstance(context, Context)
        shared = opened_secret(message.tensor("box"), context)
        return Reply(Message(), memory.replace(shared=_tensor(shared.whole)))

    @exchange(asks=SHUFFLER, accepts=lambda self, task, message: Form())
    def begin(self, task: Task, message: Message, memory: Memory, context: Context) -> Reply:
        """The shuffler: its public key of this round."""
        return Reply(Message.of(key=_tensor(_round_key(context).public)))

    @exchange(asks=SHUFFLER, accepts=lambda self, task, message: self._boxes_form(task, message))
    def shuffle(self, task: Task, message: Message, memory: Memory, context: Context) -> Reply:
        """The shuffler: the rows of all clients in a random order; who was refused, and why."""
        keys, round_key = message["keys"], _round_key(context)
        known = _first_keys(memory, keys)
        rows, refused = [], {}
        for client, box in message["boxes"].items():
            try:
                if not torch.equal(known[client], keys[client]):
                    raise WireError("it has another public key than when it first came.")
                what = about("rows", context.round, client)
                opened = open_sealed(_bytes(box), round_key, what, _bytes(keys[client]))
                rows.append(_matrix(opened, int(message.number("width"))))
            except WireError as error:
                refused[f"refused-{client}"] = str(error)
        together = torch.cat(rows) if rows else _empty(int(message.number("width")))
        order = context.secrets.key("order").numpy().permutation(len(together))
        return Reply(Message.of(rows=together[torch.from_numpy(order)], **refused), Memory.of(keys=known))


def seed_of(context: Context) -> Tensor:
    """The seed, as the key server has it."""
    return _tensor(_drawn(context).seed)


def own_key(context: Context) -> KeyPair:
    """A client's lasting key."""
    return KeyPair.of(context.secrets.lasting.bytes("private key", KEY))


def kept_secret(memory: Memory) -> Shared:
    """What this client was dealt in its first round."""
    if "shared" not in memory.tensors:
        raise InputError("has not been given the key server's secret.")
    return Shared.of(_bytes(memory.tensor("shared")))


def opened_secret(box: Tensor, context: Context) -> Shared:
    """What the key server dealt to this client."""
    what = about("secret", context.round, context.id)
    return Shared.of(open_sealed(_bytes(box), own_key(context), what))


def sealed_rows(rows: Tensor, shared: Shared, shuffler: Tensor, context: Context) -> Message:
    """The client's reply: its rows [n, bytes], numbered, tagged and sealed for the shuffler, and how many there are."""
    check, secrets = shared.check_key(context.round), context.secrets
    numbers = secrets.bytes("numbers of rows", NUMBER * len(rows))
    content = rows.contiguous().numpy()
    tagged = [_tagged(content[i].tobytes(), numbers[NUMBER * i : NUMBER * (i + 1)], check) for i in range(len(content))]
    pair = own_key(context)
    what = about("rows", context.round, context.id)
    box = seal(b"".join(tagged), _bytes(shuffler), what, secrets.bytes("box", KEY), pair)
    return Message.of(box=_tensor(box), key=_tensor(pair.public), rows=len(rows))


def sealed_form() -> Form:
    """Of such a reply."""
    return Form.of(box=(torch.uint8, (None,)), key=(torch.uint8, (KEY,)))


def boxes_for_shuffler(replies: Replies, width: int) -> Message:
    """What the server hands on: boxes, and the public keys of those that they come from."""
    boxes = {client: reply.tensor("box") for client, reply in replies.items()}
    keys = {client: reply.tensor("key") for client, reply in replies.items()}
    return Message.of(boxes=boxes, keys=keys, width=width + NUMBER + TAG)


def refused_clients(reply: Message) -> dict[str, str]:
    """Client -> why the shuffler refused it."""
    return {
        name.removeprefix("refused-"): str(why) for name, why in reply.scalars.items() if name.startswith("refused-")
    }


def checked_rows(reply: Message, counts: Mapping[str, int], check: Tensor, number: int) -> Tensor:
    """The rows [n, bytes] as clients made them; a QuorumError if the shuffler altered, lost or added any.

    `counts`: how many each client that was not refused says it sent.
    """
    rows, expected = reply.tensor("rows"), sum(counts.values())
    stop = f"round {number}: the shuffler cannot be trusted:"
    if len(rows) != expected:
        raise QuorumError(f"{stop} clients sent {expected} rows and it forwarded {len(rows)}. {_STOPPED}")
    content, key = rows.contiguous().numpy(), _bytes(check)
    numbers = {content[i, :NUMBER].tobytes() for i in range(len(content))}
    if len(numbers) != len(content):
        raise QuorumError(f"{stop} {len(content) - len(numbers)} rows came more than once. {_STOPPED}")
    for i in range(len(content)):
        whole = content[i].tobytes()
        if _tagged(whole[NUMBER + TAG :], whole[:NUMBER], key) != whole:
            raise QuorumError(f"{stop} a row is none that a client made in this round. {_STOPPED}")
    return rows[:, NUMBER + TAG :]


def packed(tree: Tree) -> Tensor:
    """Rows of bytes [n, width] from tensors with one row a sample."""
    parts = [value.contiguous().view(len(value), prod(value.shape[1:])).view(torch.uint8) for value in tree.values()]
    return torch.cat(parts, 1)


def unpacked(rows: Tensor, form: Form) -> Tree:
    """The tensors again, [n, ...]; `form`: their dtypes and the shapes of one row, in the order of `packed`."""
    if rows.shape[1] != (width := width_of(form)):
        raise WireError(f"rows of {rows.shape[1]} bytes where {width} were expected.")
    tree: Tree = {}
    start = 0
    for name, (dtype, shape) in form.sizes.items():
        count = prod(shape) * dtype.itemsize
        part = rows[:, start : start + count].reshape(-1).clone()  # memory of its own, aligned for any dtype
        tree[name] = part.view(dtype).view(len(rows), *shape)
        start += count
    return tree


def width_of(form: Form) -> int:
    """Bytes of a row of this form."""
    return sum(prod(shape) * dtype.itemsize for dtype, shape in form.sizes.values())


def _tagged(row: bytes, number: bytes, check: bytes) -> bytes:
    tag = blake2b(number + row, key=check, digest_size=TAG, person=b"parley row").digest()
    return number + tag + row


def _matrix(data: bytes, width: int) -> Tensor:
    if not width or len(data) % width:
        raise WireError(f"{len(data)} bytes are no rows of {width}.")
    return _tensor(data).view(-1, width) if data else _empty(width)


def _empty(width: int) -> Tensor:
    return torch.zeros(0, width, dtype=torch.uint8)


def _drawn(context: Context) -> Shared:
    """What the key server draws for the whole run."""
    lasting = context.secrets.lasting
    return Shared(lasting.bytes("projection seed", KEY), lasting.bytes("row checks", KEY))


def _first_keys(memory: Memory, keys: Tree) -> Tree:
    """The first key that each client came with, remembered ones first."""
    return {**keys, **memory.get("keys")}


def _round_key(context: Context) -> KeyPair:
    return KeyPair.of(context.secrets.lasting.bytes(f"key of round {context.round}", KEY))


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().numpy().tobytes())
