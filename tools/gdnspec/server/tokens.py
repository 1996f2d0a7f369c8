"""Users and their tokens. A token is shown once; the database keeps only its hash."""

import hashlib
import secrets
import time
from typing import NamedTuple

from gdnspec.server.database import Database

PREFIX = "gdnspec_"  # makes a leaked token easy to recognise
DAY = 86400.0


class TokenRow(NamedTuple):
    """A token in a list. Times are seconds since 1970."""

    user: str
    created: float
    expires: float
    revoked: float | None

    def state(self, now: float) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires <= now else "valid"


class UserExists(Exception):
    """The user already has a valid token."""


class Tokens:
    """The users of a server, and their tokens. All methods raise `StorageError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, user: str, days: float) -> str:
        """Makes a token for a new user, or for a user without a valid token. Raises `UserExists`."""
        # 256 random bits cannot be guessed, so a slow hash would protect nothing more.
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
        """Revokes a user's tokens. Returns how many were valid."""
        now = time.time()
        with self._database.write() as connection:
            return connection.execute(
                "UPDATE tokens SET revoked = ? WHERE user = ? AND revoked IS NULL AND expires > ?", (now, user, now)
            ).rowcount

    def user(self, token: str) -> str | None:
        """The user of a token; None if the token is unknown, expired or revoked."""
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT user FROM tokens WHERE hash = ? AND revoked IS NULL AND expires > ?",
                (_hash(token), time.time()),
            ).fetchone()
        return row["user"] if row else None

    def listed(self) -> list[TokenRow]:
        """All tokens that were ever made, by user."""
        with self._database.read() as connection:
            rows = connection.execute("SELECT user, created, expires, revoked FROM tokens ORDER BY user, created")
            return [TokenRow(*row) for row in rows]


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="surrogateescape")).hexdigest()
