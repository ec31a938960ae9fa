# syntax=docker/dockerfile:1

# The program is static. The final image is BusyBox (two megabytes), so that jobs
# of the executor "command" find a shell, with the certificates of public
# authorities for calls to receivers over TLS.

FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
ARG VERSION=unknown
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/sekali ./cmd/sekali \
    && mkdir /out/data

FROM busybox:1.37-musl
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build /out/sekali /usr/bin/sekali
# Any user will do that is not root; 65532 is what others call "nonroot".
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
WORKDIR /data
VOLUME /data

# A container's own loopback address reaches nobody, so it listens on all of its
# addresses. Who may reach the port is decided where it is published (compose.yaml:
# this machine alone), or by a proxy in front of it that asks for credentials.
ENV SEKALI_LISTEN=0.0.0.0:8080 \
    SEKALI_AUTH_ALLOW_PUBLIC=true \
    DATABASE_URL=sqlite:/data/sekali.db
EXPOSE 8080

HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 CMD ["/usr/bin/sekali", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/sekali"]
CMD ["serve"]
