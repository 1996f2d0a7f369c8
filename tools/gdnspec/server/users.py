"""The user of a request, found by its token; and the limit on requests."""

import base64
import binascii
import math
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from gdnspec.server.http_errors import ApiError
from gdnspec.server.limits import Rate
from gdnspec.server.tokens import Tokens

CHALLENGE = {"WWW-Authenticate": "Bearer"}
ASK = {"WWW-Authenticate": 'Basic realm="gdnspec: any name, and your token as the password", charset="UTF-8"'}
bearer = HTTPBearer(auto_error=False, description="the token that `gdnspec serve --add-user` showed")


def by_token(request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Security(bearer)]) -> str:
    """The user's name. Raises `ApiError` with status 401 or 429."""
    if given is None:
        raise ApiError(401, "unauthorised", "no token: send Authorization: Bearer TOKEN", CHALLENGE)
    return _known(request, given.credentials, CHALLENGE)


def by_token_or_password(request: Request) -> str:
    """As `by_token`. A browser, which sends a name and a password, can send the token as the password."""
    kind, _, given = request.headers.get("Authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return _known(request, given.strip(), ASK)
    if kind.lower() != "basic":
        raise ApiError(401, "unauthorised", "no token: give it as the password", ASK)
    try:
        token = base64.b64decode(given, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        raise ApiError(401, "unauthorised", "no token: give it as the password", ASK) from None
    return _known(request, token, ASK)


def _known(request: Request, token: str, challenge: dict[str, str]) -> str:
    tokens: Tokens = request.app.state.tokens
    rate: Rate = request.app.state.rate
    user = tokens.user(token)
    if user is None:
        raise ApiError(401, "unauthorised", "the token is wrong, expired or revoked", challenge)
    if wait := rate.wait(user):
        seconds = math.ceil(wait)
        raise ApiError(429, "rate_limit", f"too many requests: try again in {seconds} s", {"Retry-After": str(seconds)})
    return user


User = Annotated[str, Depends(by_token)]
Reader = Annotated[str, Depends(by_token_or_password)]
