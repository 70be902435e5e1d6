# syntax=docker/dockerfile:1
# The command `vocagno` with what training, scoring and benchmarks need:
#     docker build --tag vocagno .
#     docker run --rm --gpus all --volume "$PWD:/work" vocagno train --config my.yaml
# This image has not been built yet. It starts from Python's image, not from one of CUDA: torch's wheels bring their own CUDA
# libraries, and a second copy would only add gigabytes. The host needs NVIDIA's driver and container toolkit.
ARG RUST=1.95
ARG PYTHON=3.13

FROM rust:${RUST}-slim-bookworm AS build
# Debian removes old versions of packages, so a pinned one would soon fail.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/maturin \
    && /opt/maturin/bin/pip install --no-cache-dir 'maturin>=1.9.4,<2'
WORKDIR /source
COPY Cargo.toml Cargo.lock pyproject.toml README.md LICENSE ./
COPY rust rust
COPY python python
RUN /opt/maturin/bin/maturin build --release --out /wheels

FROM python:${PYTHON}-slim-bookworm
# Compiled models (train.compile, Triton's kernels) need a compiler when they run.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    wheel=$(echo /wheels/vocagno-*.whl) \
    && pip install --no-cache-dir "${wheel}[train,eval]"
RUN useradd --create-home --uid 1000 vocagno \
    && install --directory --owner=vocagno /work
# As in the images of CUDA, for runtimes that go by them and not by --gpus.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /work
ENTRYPOINT ["vocagno"]
CMD ["--help"]
