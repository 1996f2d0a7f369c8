"""Who may ask. A token is shown once; what is kept of it is its hash, which is of no use to whoever reads it."""

import hashlib
import secrets
import time
from typing import NamedTuple

from gdnspec.server.database import Database

PREFIX = "gdnspec_"  # so that a token that leaked is known for what it is
DAY = 86400.0


class TokenRow(NamedTuple):
    """A token as it is listed. Times are seconds since 1970."""

    user: str
    created: float
    expires: float
    revoked: float | None

    def state(self, now: float) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires <= now else "valid"


class UserExists(Exception):
    """There is a user of that name with a token that is valid."""


class Tokens:
    """The users of a service, and their tokens. All of it raises `StorageError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, user: str, days: float) -> str:
        """A new token for a user, who may be new as well, or have none that is valid. Raises `UserExists`."""
        # 256 random bits: nothing to be guessed, and so nothing that a slow hash would protect.
        token, now = PREFIX + secrets.token_urlsafe(32), time.time()
        with self._database.write() as connection:
            valid = "SELECT 1 FROM tokens WHERE user = ? AND revoked IS NULL AND expires > ?"
            if connection.execute(valid, (user, now)).fetchone():
                raise UserExists
            connection.execute("INSERT OR IGNORE INTO users VALUES (?, ?)", (user, now))
            connection.execute(
                "INSERT INTO tokens VALUES (?, ?, ?, ?, NULL)", (_hash(token), user, now, now + days * DAY)
            )
        return token

    def revoke(self, user: str) -> int:
        """From now on; how many tokens were valid until then."""
        now = time.time()
        with self._database.write() as connection:
            return connection.execute(
                "UPDATE tokens SET revoked = ? WHERE user = ? AND revoked IS NULL AND expires > ?", (now, user, now)
            ).rowcount

    def user(self, token: str) -> str | None:
        """Whose it is; None where it is nobody's, or no longer."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT user FROM tokens WHERE hash = ? AND revoked IS NULL AND expires > ?",
                (_hash(token), time.time()),
            ).fetchone()
        return row["user"] if row else None

    def listed(self) -> list[TokenRow]:
        """All there ever were, by user."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT user, created, expires, revoked FROM tokens ORDER BY user, created")
            return [TokenRow(*row) for row in rows]


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
