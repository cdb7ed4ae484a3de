"""Who may send what, and who may see what.

A token stands for a name, the namespaces that its bearer may send profiles of, and those that it may
see. Without a tokens file there are no tokens: everybody who reaches the port may do everything, which
is why ports are on localhost unless told otherwise.

The tokens file has one token a line, words apart by spaces; `*` = all namespaces, `-` = none, and an
empty namespace (programs outside Kubernetes) is written `""`:

    # name   token                 may send      may see
    agents   5f0c…                 *             -
    shop     91ab…                 shop,shop-dev shop,shop-dev
    admin    77de…                 -             *

Behind a proxy that signs people in (OIDC), the user's name and groups come in headers that only the proxy
can set, and `MaySee` decides: in a cluster by SubjectAccessReviews (`reviews.py`). Without it they see all.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flameherd_backend.errors import Unauthenticated, UsageError

Namespaces = frozenset[str] | None
"""None = all."""


_MAX_FILE: Final = 1 << 20
_MIN_TOKEN: Final = 16
_WORDS: Final = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """Whoever sends a request."""

    name: str
    may_send: Namespaces
    may_see: Namespaces
    groups: tuple[str, ...] | None = None
    """Of a person whom a proxy has signed in; None = it is a token's bearer."""


MaySee = Callable[[Identity, frozenset[str]], Namespaces]
"""(person, namespaces that there are) → those that the person may see."""

EVERYBODY: Final = Identity("", None, None)


def _namespaces(text: str) -> Namespaces:
    if text == "*":
        return None
    if text == "-":
        return frozenset()
    return frozenset("" if name == '""' else name for name in text.split(","))


def read_tokens(path: Path) -> dict[bytes, Identity]:
    """SHA-256 of each token → who it stands for. Raises `UsageError`, never with a token in it."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--tokens {path}: {error}") from error
    if len(text) > _MAX_FILE:
        raise UsageError(f"--tokens {path}: more than {_MAX_FILE} characters")
    found: dict[bytes, Identity] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != _WORDS:
            raise UsageError(f"--tokens {path}:{number}: a line is `name token may-send may-see`")
        name, token, may_send, may_see = words
        if len(token) < _MIN_TOKEN:
            raise UsageError(
                f"--tokens {path}:{number}: the token of {name} is shorter than {_MIN_TOKEN} characters"
            )
        found[hashlib.sha256(token.encode()).digest()] = Identity(
            name, _namespaces(may_send), _namespaces(may_see)
        )
    if not found:
        raise UsageError(f"--tokens {path}: there is no token in it")
    return found


class Access:
    """Decides by `Authorization`, and by the proxy's headers if there are any."""

    def __init__(
        self,
        tokens: Mapping[bytes, Identity] | None = None,
        user_header: str = "",
        may_see: MaySee | None = None,
        groups_header: str = "",
    ) -> None:
        self._tokens = tokens
        self._user_header = user_header.lower()
        self._groups_header = groups_header.lower()
        self._may_see = may_see

    def identify(
        self, authorization: str | None, headers: Mapping[str, str] | None = None
    ) -> Identity:
        """Who it is; `headers`: of the page's port, where the proxy is. Raises `Unauthenticated`."""
        user = (headers or {}).get(self._user_header, "") if self._user_header else ""
        if user and not authorization:
            named = (headers or {}).get(self._groups_header, "") if self._groups_header else ""
            groups = tuple(group.strip() for group in named.split(",") if group.strip())
            return Identity(user, frozenset(), None, groups)
        if self._tokens is None and not self._user_header:
            return EVERYBODY
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated("a token is needed: Authorization: Bearer …")
        # Looked up by its hash, so that how long it takes tells nothing about a token.
        known = (self._tokens or {}).get(hashlib.sha256(token.strip().encode()).digest())
        if known is None:
            raise Unauthenticated("the token is not known here")
        return known

    def visible(self, identity: Identity, stored: Callable[[], frozenset[str]]) -> Namespaces:
        """The namespaces whose profiles this viewer may see; `stored`: those that there are. Raises `AccessUnknown`."""
        if self._may_see is None or identity.groups is None:
            return identity.may_see
        return self._may_see(identity, stored())
