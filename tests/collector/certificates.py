"""Throw-away certificates for tests, by the openssl command."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, PEM."""

    cert: Path
    key: Path


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


def make_ca(folder: Path, name: str = "ca") -> Identity:
    """A self-signed authority."""
    ca = Identity(folder / f"{name}.crt", folder / f"{name}.key")
    _openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(ca.key), "-out", str(ca.cert), "-days", "2", "-subj", f"/CN={name}"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    return ca


def issue(folder: Path, ca: Identity, name: str, names: str = "DNS:localhost") -> Identity:
    """A certificate for `names` (as subjectAltName), signed by `ca`."""
    made = Identity(folder / f"{name}.crt", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName={names}\n", encoding="ascii")
    _openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-keyout", str(made.key), "-out", str(request), "-subj", f"/CN={name}"),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(ca.cert), "-CAkey", str(ca.key)),
        *("-CAcreateserial", "-out", str(made.cert), "-days", "2", "-extfile", str(extensions)),
    )
    return made
