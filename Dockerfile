# The planning service: planning, the store and HTTP. It never imports torch; the ranks of a training
# run install the package with its extra "runtime".
# The base is named by a tag, which moves with fixes of Python and Debian. To pin it, take the digest
# of the image that was pulled and write FROM python:3.11-slim@sha256:… in both places:
#   docker image inspect --format '{{index .RepoDigests 0}}' python:3.11-slim
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
# A compiler for the planner's fill, in this stage only; where none can be had the fill stays in Python.
# hadolint ignore=DL3008
RUN if ! { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev; }; then \
    echo "No compiler: the fill stays in Python."; \
  fi; \
  rm -rf /var/lib/apt/lists/*; \
  python -m venv /opt/seqplan \
  && /opt/seqplan/bin/python -m pip install --no-cache-dir -c constraints.txt ".[postgresql]"

FROM python:3.11-slim
# A number, so that an orchestrator can tell that it is not root.
RUN install --directory --owner 10001 --group 10001 /data
COPY --from=build /opt/seqplan /opt/seqplan
ENV PATH=/opt/seqplan/bin:$PATH
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8400
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8400/healthz', timeout=4)"]
# Beyond loopback the service wants a token in its store: make one first with --add-token.
CMD ["seqplan", "serve", "--store", "/data/seqplan.db", "--host", "0.0.0.0", "--port", "8400"]
