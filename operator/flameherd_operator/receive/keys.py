"""The certificate of the status server: self-signed, kept in a Secret, renewed before its end.

Agents trust exactly the certificates that the operator hands to them, in a ConfigMap of their own
namespace, so that no certificate authority is needed and none can be misused. A new certificate is
handed out a day before it is served: by then every kubelet has renewed the file.

Only `kept` makes keys; everything else here reads them.
"""

import os
import ssl
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID: Final = timedelta(days=365)
RENEW_BEFORE: Final = timedelta(days=120)
HANDED_OUT: Final = timedelta(days=1)
"""A certificate is handed out for so long before it is served."""
_SKEW: Final = timedelta(hours=1)
"""Nodes' clocks may be behind."""
_PAIRS: Final = ("tls", "next")

Pems = Mapping[str, bytes]
"""Data of the Secret: `tls.crt`, `tls.key`, and for a while `next.crt`, `next.key`."""


def kept(data: Pems, names: Sequence[str], now: datetime) -> Pems:
    """What the Secret should hold, from what it holds (`{}` = there is none).

    What cannot be used (another name, no PEM, ended) is replaced.
    """
    pairs = [
        (data[f"{pair}.crt"], data[f"{pair}.key"])
        for pair in _PAIRS
        if _usable(data, pair, names, now)
    ]
    if len(pairs) == 2 and now - _begin(pairs[1][0]) >= HANDED_OUT + _SKEW:
        pairs = pairs[1:]
    if not pairs or (len(pairs) == 1 and _end(pairs[0][0]) - now < RENEW_BEFORE):
        pairs.append(_make(names, now))
    return {
        f"{name}.{part}": pem
        for name, pair in zip(_PAIRS, pairs, strict=False)
        for part, pem in zip(("crt", "key"), pair, strict=True)
    }


def bundle(data: Pems) -> str:
    """What agents trust: every certificate, PEM."""
    return "".join(data[f"{pair}.crt"].decode() for pair in _PAIRS if f"{pair}.crt" in data)


def load(context: ssl.SSLContext, data: Pems) -> None:
    """Serve with this certificate from the next connection on."""
    # ssl reads files only: this one has no name, and no disk under it.
    descriptor = os.memfd_create("status", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, data["tls.key"] + data["tls.crt"])
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _usable(data: Pems, pair: str, names: Sequence[str], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(data[f"{pair}.crt"])
        key = serialization.load_pem_private_key(data[f"{pair}.key"], None)
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (KeyError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return (
        key.public_key() == certificate.public_key()
        and set(named.value.get_values_for_type(x509.DNSName)) == set(names)
        and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc
    )


def _begin(pem: bytes) -> datetime:
    return x509.load_pem_x509_certificate(pem).not_valid_before_utc


def _end(pem: bytes) -> datetime:
    return x509.load_pem_x509_certificate(pem).not_valid_after_utc


def _make(names: Sequence[str], now: datetime) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Different subjects, so that of two certificates in a bundle the right one is found.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"flameherd {serial:x}")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before((now - _SKEW).astimezone(UTC))
        .not_valid_after((now - _SKEW + VALID).astimezone(UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(
            x509.KeyUsage(True, False, False, False, False, True, False, False, False), True
        )
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(identifier, False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
