# syntax=docker/dockerfile:1
# Two images: `docker build --target server .` and, with Spark, `docker build --target pipeline .`

FROM python:3.13-slim AS base
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN useradd --system --uid 4437 --create-home --home-dir /var/lib/tailrace tailrace \
    && install -d -m 0700 -o tailrace -g tailrace /var/lib/tailrace/data /var/lib/tailrace/cold
WORKDIR /build

# Dependencies first: they change less often than the sources.
FROM base AS server-requirements
COPY requirements.lock requirements-postgres.lock ./
RUN pip install --require-hashes -r requirements.lock -r requirements-postgres.lock

FROM server-requirements AS server
COPY LICENSE README.md pyproject.toml hatch_build.py ./
COPY src ./src
COPY clients/js/tailrace.js ./clients/js/
RUN pip install --no-deps . && rm -rf /build/*
USER tailrace
WORKDIR /var/lib/tailrace
VOLUME /var/lib/tailrace/data
EXPOSE 4437
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:4437/readyz', timeout=2)"]
ENTRYPOINT ["tailrace"]
CMD ["serve", "--host", "0.0.0.0", "--data", "/var/lib/tailrace/data"]

FROM server-requirements AS pipeline
COPY requirements-spark.lock ./
RUN pip install --require-hashes -r requirements-spark.lock
COPY LICENSE README.md pyproject.toml hatch_build.py ./
COPY src ./src
COPY clients/js/tailrace.js ./clients/js/
RUN pip install --no-deps . && rm -rf /build/*
USER tailrace
WORKDIR /var/lib/tailrace
STOPSIGNAL SIGINT
ENTRYPOINT ["tailrace", "pipeline"]
CMD ["run"]
