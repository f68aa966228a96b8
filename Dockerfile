# Two images from one file:
#
#     docker build --target operator -t ppojob-operator:0.1.0 .
#     docker build --target trainer  -t ppojob-trainer:0.1.0 --build-arg ACCELERATOR=cuda .
#
# BASE is any Debian or Ubuntu image with Python 3.11 or 3.12. Both targets keep its interpreter, so
# one base serves both. Everything is installed by hash (requirements/), then the wheel without
# dependencies. At run time nothing needs a shell, root, or a file system that can be written.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# For a base whose Python comes without venv; and the roots that uv trusts, those of the base.
RUN python3 -c "import ensurepip" 2>/dev/null \
 || (apt-get update && apt-get install -y --no-install-recommends python3-venv)
ENV UV_SYSTEM_CERTS=1 UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
COPY requirements/build.txt /build/requirements/
RUN python3 -m venv /build/tools \
 && /build/tools/bin/python -m pip install --quiet --no-cache-dir --require-hashes \
      -r /build/requirements/build.txt \
 && /build/tools/bin/uv venv --quiet --python "$(command -v python3)" /opt/ppojob
ENV VIRTUAL_ENV=/opt/ppojob
WORKDIR /build

FROM build AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY operator operator
COPY trainer_image trainer_image
COPY cli cli
RUN tools/bin/python -m hatchling build -t wheel -d /build/dist

# Requirements come in layers of their own, so a change of the source reinstalls nothing.
FROM build AS operator-environment
COPY requirements/operator.txt requirements/
RUN tools/bin/uv pip sync --quiet --require-hashes requirements/operator.txt
COPY --from=wheel /build/dist dist
RUN tools/bin/uv pip install --quiet --no-deps dist/*.whl

FROM build AS trainer-environment
# cuda or cpu: which of requirements/ is installed.
ARG ACCELERATOR=cuda
COPY requirements/${ACCELERATOR}.txt requirements/
RUN tools/bin/uv pip sync --quiet --require-hashes requirements/${ACCELERATOR}.txt
COPY --from=wheel /build/dist dist
RUN tools/bin/uv pip install --quiet --no-deps dist/*.whl

FROM ${BASE} AS operator
COPY --from=operator-environment /opt/ppojob /opt/ppojob
ENV PATH=/opt/ppojob/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT []
CMD ["python", "-m", "ppojob_operator"]

FROM ${BASE} AS trainer
# Without libnuma vLLM's processor kernels do not load. On GPUs Triton compiles its launchers when
# they are first used: gcc, libc6-dev and python3-dev belong into TRAINER_PACKAGES or the base.
ARG TRAINER_PACKAGES="libnuma1"
RUN dpkg --status ${TRAINER_PACKAGES} >/dev/null 2>&1 \
 || (apt-get update && apt-get install -y --no-install-recommends ${TRAINER_PACKAGES} \
     && rm -rf /var/lib/apt/lists/*)
COPY --from=trainer-environment /opt/ppojob /opt/ppojob
# HOME is a volume of the pod's own in a job; /tmp is for whoever tries the image by hand.
ENV PATH=/opt/ppojob/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000:1000
ENTRYPOINT []
CMD ["python", "-m", "ppojob_trainer", "supervise"]
