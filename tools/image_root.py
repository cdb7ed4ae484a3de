#!/usr/bin/python3
"""`image_root.py TARGET PACKAGE…`: a root file system of what these installed Debian packages need at run time.

Runs inside the image build. TARGET gets the files of the packages and of all that they depend on, but for
documentation, development files, and what nothing here runs (a shell, perl, dpkg and the like). Their
entries in dpkg's database go along as /var/lib/dpkg/status.d/NAME, where scanners of images look for them.
Standard library only, for the Python of the image.
"""

import compileall
import py_compile
import re
import shutil
import subprocess
import sys
from pathlib import Path

UNUSED = {
    # Only maintainer scripts need them.
    *("bash", "cdebconf", "coreutils", "dash", "debconf", "debianutils", "dpkg", "mawk", "openssl", "perl-base"),
    *("sed", "tar", "ucf"),
    # Behind modules of Python that nothing here imports: dbm, readline, sqlite3, mailcap, zoneinfo.
    *("libdb5.3t64", "libreadline8t64", "readline-common", "libsqlite3-0", "media-types", "tzdata"),
    # LLVM's solver, for clang's static analyser: the Dockerfile puts a stand-in there.
    "libz3-4",
    # Tools and headers of bcc; its Python module knows their paths but does not need them.
    *("python3-netaddr", "bpfcc-tools"),
}  # fmt: skip
LEFT_OUT = re.compile(
    r"/usr/share/(doc|man|locale|info|lintian|bug|bash-completion|pixmaps|applications|gdb|perl5)(/|$)"
    r"|/usr/lib/[^/]*/gconv(/|$)|/usr/include(/|$)|\.pyc$"
    r"|/usr/lib/python3[^/]*/(test|ensurepip|idlelib|pydoc_data|turtledemo|tkinter|dbm|sqlite3|venv"
    r"|__pycache__)(/|$)"
    r"|/usr/lib/python3[^/]*/(config-|turtle\.py|lib-dynload/(_test|_xx|xx|readline|_dbm|_sqlite3))"
)
USER = ("flameherd:x:65532:65532::/:/sbin/nologin\n", "flameherd:x:65532:\n")


def query(form: str, package: str) -> str:
    command = ["dpkg-query", "--show", f"--showformat={form}", package]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def is_installed(package: str) -> bool:
    command = ["dpkg-query", "--show", "--showformat=${db:Status-Status}", package]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.startswith("installed")


def closure(packages: list[str]) -> list[str]:
    """The packages and what they depend on: of alternatives, the installed ones."""
    found: list[str] = []
    waiting = list(packages)
    while waiting:
        package = waiting.pop()
        if package in found or package in UNUSED or not is_installed(package):
            continue
        found.append(package)
        depends = query("${Pre-Depends},${Depends}", package)
        waiting += re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]*)", depends)
    return sorted(found)


def take(package: str, target: Path) -> None:
    """Its files, and its entry for scanners."""
    listing = ["dpkg-query", "--listfiles", package]
    files = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
    for name in files.splitlines():
        if LEFT_OUT.search(name) or name in ("/.", "/"):
            continue
        source, copy = Path(name), target / name[1:]
        if source.is_symlink():
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.is_symlink():
                copy.symlink_to(source.readlink())
        elif source.is_dir():
            copy.mkdir(parents=True, exist_ok=True)
        elif source.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, copy)
    status = target / "var/lib/dpkg/status.d"
    status.mkdir(parents=True, exist_ok=True)
    entry = subprocess.run(
        ["dpkg-query", "--status", package], check=True, capture_output=True, text=True
    )
    (status / package).write_text(entry.stdout)


def main() -> None:
    target = Path(sys.argv[1])
    shutil.rmtree(target, ignore_errors=True)
    # The links /bin, /lib and so on come first: packages may name files through them.
    for name in ("bin", "lib", "lib64", "sbin"):
        (target / "usr" / name).mkdir(parents=True)
        (target / name).symlink_to(f"usr/{name}")
    for package in closure(sys.argv[2:]):
        take(package, target)
    for name, line in zip(("passwd", "group"), USER, strict=True):
        (target / "etc" / name).write_text(Path("/etc", name).read_text() + line)
    bundle = Path("etc/ssl/certs/ca-certificates.crt")  # made when it was installed
    (target / bundle).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2("/" / bundle, target / bundle)
    for name in ("proc", "sys", "dev", "opt", "run", "tmp", "var/tmp", "var/cache/flameherd"):
        (target / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (target / name).chmod(0o1777)
    subprocess.run(["ldconfig", "-r", str(target)], check=True)
    # Its root is read-only when it runs. By content, because copies do not keep times.
    for folder in target.glob("usr/lib/python3*"):
        compileall.compile_dir(
            folder,
            quiet=1,
            stripdir=str(target),
            prependdir="/",
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )


if __name__ == "__main__":
    main()
