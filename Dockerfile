# The planning service: plans, the store and HTTP. It never imports torch, which is therefore left
# out of the image; ranks install the package with it.
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/seqplan
RUN python -c "import tomllib; print(*(each for each in tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'] if not each.startswith('torch')), sep='\n')" > requirements.txt
RUN /opt/seqplan/bin/python -m pip install --no-cache-dir -c constraints.txt -r requirements.txt
RUN /opt/seqplan/bin/python -m pip install --no-cache-dir --no-deps .

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 seqplan && install --directory --owner seqplan /data
COPY --from=build /opt/seqplan /opt/seqplan
ENV PATH=/opt/seqplan/bin:$PATH
USER seqplan
WORKDIR /data
VOLUME /data
EXPOSE 8400
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8400/healthz', timeout=4)"]
# Beyond loopback the service wants a token: make one first with --add-token (see the README).
CMD ["seqplan", "serve", "--store", "/data/seqplan.db", "--host", "0.0.0.0", "--port", "8400"]
