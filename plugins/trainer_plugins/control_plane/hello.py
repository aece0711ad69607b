"""A task's introduction, and the proof that it is one of this run's tasks."""

import dataclasses
import hashlib
import hmac
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.plugin_api import Cluster

SECRET = "TRAINER_COORDINATOR_SECRET"


class Secret:
    """What the tasks of a run share, and other programs do not know.

    It is `TRAINER_COORDINATOR_SECRET`, which `trainer.launch` sets. Without
    it, every program that reaches the port and speaks the protocol is
    trusted, as TensorFlow's own ports trust it. It never travels itself
    (challenge and response as in RFC 2104's HMAC).
    """

    def __init__(self) -> None:
        self._key = os.environ.get(SECRET, "").encode()

    def proof(self, challenge: str) -> str:
        """Returns what only those who know the secret can compute."""
        # Another program may send any text, even one that is not Unicode.
        text = challenge.encode(errors="surrogatepass")
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def is_proof(self, given: Any, challenge: str) -> bool:
        """Whether a proof is right."""
        return (
            isinstance(given, str)
            and given.isascii()
            and hmac.compare_digest(given, self.proof(challenge))
        )


@dataclasses.dataclass(frozen=True)
class Hello:
    """What a task says about itself.

    Attributes:
        name: such as `"worker 1"`.
        tasks: the address of every task that takes part, as it was given.
        facts: what must be equal everywhere, such as versions; JSON values.
        id: distinguishes a process that connects again from a second one
            with the same name.
        joins: whether it takes part, or only searches for a coordinator.
        expected: the members of a run that has ended for this task. They
            are started again soon, and should be waited for.
    """

    name: str
    tasks: Mapping[str, str]
    facts: Mapping[str, Any]
    id: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    joins: bool = True
    expected: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        tasks: Mapping[str, str],
        facts: Mapping[str, Any],
    ) -> "Hello":
        """Introduces this process; what JSON lacks is compared as text."""
        # As they arrive at the others, so that the task's own facts compare
        # equal: JSON turns a tuple into a list.
        facts = json.loads(json.dumps(dict(facts), default=str))
        return cls(cluster.name, dict(tasks), facts)

    def message(self, secret: Secret, challenge: str) -> dict[str, Any]:
        """Returns the message that `parse` reads."""
        proof = secret.proof(f"task {challenge}")
        if not self.joins:
            return {"search": self.name, "id": self.id, "proof": proof}
        return {
            "join": self.name,
            "id": self.id,
            "proof": proof,
            "tasks": self.tasks,
            "facts": self.facts,
            "expected": self.expected,
        }

    @classmethod
    def parse(
        cls, message: Mapping[str, Any] | None, secret: Secret, challenge: str
    ) -> "Hello | None":
        """Reads an introduction; `None` if it is not one, or not proven."""
        if message is None or not secret.is_proof(
            message.get("proof"), f"task {challenge}"
        ):
            return None
        joins = "join" in message
        name = message.get("join" if joins else "search")
        number = message.get("id")
        tasks, facts = message.get("tasks", {}), message.get("facts", {})
        expected = message.get("expected", [])
        valid = (
            all(isinstance(text, str) and text for text in (name, number))
            and isinstance(tasks, dict)
            and isinstance(facts, dict)
            and isinstance(expected, list)
            and all(isinstance(a, str) for a in [*tasks.values(), *expected])
        )
        if not valid:
            return None
        return cls(str(name), tasks, facts, str(number), joins, expected)
