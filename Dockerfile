# Three images: operator, agent, backend. `python -m tools.images` makes the build context (Python packages by
# uv.lock, the built page) and builds them by buildah; with the context at hand, any builder will do:
#
#     python -m tools.images --context out/images
#     docker build --target agent --tag flameherd/flameherd-agent:0.1.0 --file Dockerfile out/images
#
# None has a shell or a package manager: a root of Debian packages' files, and /opt/flameherd.
ARG DEBIAN=docker.io/library/debian:trixie-slim

FROM ${DEBIAN} AS python
RUN export DEBIAN_FRONTEND=noninteractive && apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends python3 ca-certificates \
 && rm -rf /var/lib/apt/lists/*
COPY image_root.py /usr/local/bin/
RUN python3 /usr/local/bin/image_root.py /image base-files netbase ca-certificates libstdc++6 python3 \
 && chroot /image python3 -c 'import asyncio, ctypes, hashlib, lzma, ssl, zlib'

# The loader child compiles eBPF with the system Python's bcc: of LLVM only the libraries that it loads.
FROM python AS bcc
RUN export DEBIAN_FRONTEND=noninteractive && apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends python3-bpfcc binutils \
 && rm -rf /var/lib/apt/lists/*
# LLVM is linked with the solver Z3 (28 MB), for clang's static analyser. Nothing here analyses: its functions trap.
RUN python3 /usr/local/bin/image_root.py /image base-files netbase ca-certificates ncurses-base python3 python3-bpfcc \
 && nm -D --undefined-only /image/usr/lib/*/libLLVM.so.* \
    | awk '$2 ~ /^Z3_/ {print ".globl " $2 "\n.type " $2 ", @function\n" $2 ": ud2"}' | as -o /tmp/z3.o \
 && ld -shared -z noexecstack -soname libz3.so.4 -o "$(echo /image/usr/lib/*-linux-gnu)/libz3.so.4" /tmp/z3.o \
 && chroot /image python3 -c 'import bcc'

FROM python AS operator-site
COPY operator/ /opt/flameherd/
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/flameherd \
 && cp -a /opt/flameherd /image/opt && chroot /image /opt/flameherd/bin/flameherd-operator --help >/dev/null

FROM bcc AS agent-site
COPY agent/ /opt/flameherd/
RUN find /opt/flameherd -name '*.so*' -exec strip --strip-unneeded {} + \
 && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/flameherd \
 && cp -a /opt/flameherd /image/opt && chroot /image /opt/flameherd/bin/flameherd --help >/dev/null

FROM python AS backend-site
COPY backend/ /opt/flameherd/
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/flameherd \
 && cp -a /opt/flameherd /image/opt && chroot /image /opt/flameherd/bin/flameherd-backend --help >/dev/null

FROM scratch AS operator
COPY --from=python /image/ /
COPY --from=operator-site /opt/flameherd/ /opt/flameherd/
ENV PATH=/opt/flameherd/bin:/usr/bin PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["/opt/flameherd/bin/flameherd-operator"]

FROM scratch AS backend
COPY --from=python /image/ /
COPY --from=backend-site /opt/flameherd/ /opt/flameherd/
ENV PATH=/opt/flameherd/bin:/usr/bin PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["/opt/flameherd/bin/flameherd-backend"]

# Root, since capabilities reach a process of another user only by files that have them; which ones it is given
# is in docs/security.md.
FROM scratch AS agent
COPY --from=bcc /image/ /
COPY --from=agent-site /opt/flameherd/ /opt/flameherd/
ENV PATH=/opt/flameherd/bin:/usr/bin PYTHONUNBUFFERED=1
ENTRYPOINT ["/opt/flameherd/bin/flameherd"]
