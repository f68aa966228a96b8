# Two images from one file:
#
#     docker build --target operator -t ppojob-operator:0.1.0 .
#     docker build --target trainer  -t ppojob-trainer:0.1.0 --build-arg ACCELERATOR=cuda .
#
# BASE is a Debian or Ubuntu image with Python 3.11, 3.12 or 3.13, and with ca-certificates: uv trusts
# what the base trusts. Both targets keep its interpreter, so one base serves both. Everything is installed
# by hash (requirements/), CUDA too, then the wheel without dependencies. At run time nothing needs a
# shell, root, or a file system that can be written.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# For a base whose Python comes without venv.
RUN python3 -c "import ensurepip" 2>/dev/null \
 || (apt-get update && apt-get install -y --no-install-recommends python3-venv)
COPY requirements/build.txt /build/requirements/
RUN python3 -m venv /build/tools \
 && /build/tools/bin/python -m pip install --quiet --no-cache-dir --require-hashes \
      -r /build/requirements/build.txt
WORKDIR /build

FROM build AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY api api
COPY operator operator
COPY trainer_image trainer_image
COPY cli cli
RUN tools/bin/python -m hatchling build -t wheel -d /build/dist

# Environments are made where they stay: copied from a stage of their own, each would be kept twice,
# and be written anew with every change of the source. What decides a layer is copied in, and only
# the tools are mounted: not every builder looks into a mount before it takes a layer from its store.
FROM ${BASE} AS operator
ARG UV_SYSTEM_CERTS=1 UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
ARG VIRTUAL_ENV=/opt/ppojob
COPY requirements/operator.txt /opt/requirements.txt
RUN --mount=type=bind,from=build,source=/build,target=/build \
    /build/tools/bin/uv venv --quiet --python "$(command -v python3)" /opt/ppojob \
 && /build/tools/bin/uv pip sync --quiet --require-hashes /opt/requirements.txt
COPY --from=wheel /build/dist /opt/dist
RUN --mount=type=bind,from=build,source=/build,target=/build \
    /build/tools/bin/uv pip install --quiet --no-deps /opt/dist/*.whl
ENV PATH=/opt/ppojob/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT []
CMD ["python", "-m", "ppojob_operator"]

FROM ${BASE} AS trainer
# Without libnuma vLLM's processor kernels do not load. Code of responses is locked in by libseccomp,
# and by bubblewrap where a node lets pods make namespaces. On GPUs Triton compiles its launchers when
# they are first used, where nobody can install a compiler any more. It needs Python's headers too:
# Python's own images have them; where Python is Debian's or Ubuntu's, add python3-dev, which would
# bring a second Python into all others.
ARG TRAINER_PACKAGES="libnuma1 libseccomp2 bubblewrap gcc libc6-dev"
RUN dpkg --status ${TRAINER_PACKAGES} >/dev/null 2>&1 \
 || (apt-get update && apt-get install -y --no-install-recommends ${TRAINER_PACKAGES} \
     && rm -rf /var/lib/apt/lists/*)
# cuda or cpu: which of requirements/ is installed.
ARG ACCELERATOR=cuda
ARG UV_SYSTEM_CERTS=1 UV_NO_CACHE=1 UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
ARG VIRTUAL_ENV=/opt/ppojob
COPY requirements/${ACCELERATOR}.txt /opt/requirements.txt
RUN --mount=type=bind,from=build,source=/build,target=/build \
    /build/tools/bin/uv venv --quiet --python "$(command -v python3)" /opt/ppojob \
 && /build/tools/bin/uv pip sync --quiet --require-hashes /opt/requirements.txt
COPY --from=wheel /build/dist /opt/dist
RUN --mount=type=bind,from=build,source=/build,target=/build \
    /build/tools/bin/uv pip install --quiet --no-deps /opt/dist/*.whl
# HOME is a volume of the pod's own in a job; /tmp is for whoever tries the image by hand.
ENV PATH=/opt/ppojob/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME=/tmp
USER 1000:1000
ENTRYPOINT []
CMD ["python", "-m", "ppojob_trainer", "supervise"]
