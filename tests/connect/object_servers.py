"""Real servers for the tests of object stores: moto speaks S3, Azurite Azure's protocol, a translator Google's.

Each is started once, on a port of its own choice, and stopped by its process. Azurite comes from npm into a cache
outside the repository; where it cannot be had, the tests that need it are skipped and say why.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import hmac
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import pytest

START_S = 60
DOWNLOAD_S = 300
AZURITE = "azurite@3.37.0"
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""What Azurite is documented to accept; no secret."""


@contextmanager
def running(command: list[str], ready: str) -> Iterator[str]:
    """A server until the block ends; what `ready` captures of the line in which it says that it is."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield _address(process, output, ready)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], output: IO[bytes], ready: str) -> str:
    end_s = time.monotonic() + START_S
    while True:
        said = os.pread(output.fileno(), 1 << 20, 0).decode(errors="replace")
        if found := re.search(ready, said):
            return found[1]
        assert process.poll() is None, f"the server has ended: {said}"
        assert time.monotonic() < end_s, f"the server is not ready after {START_S} s: {said}"
        time.sleep(0.05)


# S3


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a moto with a bucket `events`."""
    import boto3

    quiet = (
        "import logging; logging.getLogger('werkzeug').addFilter(lambda record: 'HTTP/1' not in record.getMessage());"
    )
    code = f"{quiet} from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"
    with running([sys.executable, "-c", code], r"Running on (http://127\.0\.0\.1:\d+)") as endpoint:
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        client.create_bucket(Bucket="events")
        client.close()
        yield endpoint


# Azure


def azurite_home() -> Path:
    """Where Azurite is installed; skips the test if that cannot be done."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"Azurite: there is no {program} here")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rivven"
    base.mkdir(parents=True, exist_ok=True)
    home = base / AZURITE.replace("@", "-")
    with open(base / f"{home.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            draft = home.with_name(f"{home.name}.unfinished")
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", ".", AZURITE]
            try:
                done = subprocess.run(command, cwd=draft, capture_output=True, text=True, timeout=DOWNLOAD_S)
            except subprocess.TimeoutExpired:
                pytest.skip(f"Azurite: npm install took more than {DOWNLOAD_S} s")
            if done.returncode:
                pytest.skip(f"Azurite: npm install failed: {done.stderr.strip()[-300:]}")
            draft.rename(home)
    return home


@contextmanager
def azure_server() -> Iterator[str]:
    """The address of an Azurite with a container `events`."""
    script = azurite_home() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    flags = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent"]
    flags += ["--skipApiVersionCheck", "--disableTelemetry"]
    with running(["node", str(script), *flags], r"successfully listens on (http://127\.0\.0\.1:\d+)") as address:
        endpoint = f"{address}/{AZURE_ACCOUNT}"
        _create_container(endpoint, "events")
        yield endpoint


def _create_container(endpoint: str, name: str) -> None:
    date, version = formatdate(usegmt=True), "2021-08-06"
    headers = f"x-ms-date:{date}\nx-ms-version:{version}"
    text = "PUT" + "\n" * 12 + f"{headers}\n/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{name}\nrestype:container"
    digest = hmac.new(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT")
    request.add_header("x-ms-date", date)
    request.add_header("x-ms-version", version)
    request.add_header("Authorization", f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}")
    urllib.request.urlopen(request, timeout=10).close()


# Google


@contextmanager
def gcs_server(s3_endpoint: str) -> Iterator[str]:
    """The address of something that speaks the XML protocol of Google's store, which is S3 but for some headers.

    No emulator has it. So this one translates the headers and lets moto do the rest.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), _translator(urlsplit(s3_endpoint).netloc))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


SIGNED = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
"""What moto takes for a signature; it looks no closer."""
SAME_IN_S3 = {"x-goog-copy-source": "x-amz-copy-source"}


def _translator(target: str) -> type[BaseHTTPRequestHandler]:
    class Translator(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer is two writes, and the second would wait 40 ms

        def answer(self) -> None:
            headers = {SAME_IN_S3.get(name.lower(), name): value for name, value in self.headers.items()}
            headers["authorization"] = SIGNED
            if headers.pop("x-goog-if-generation-match", None) == "0":
                headers["If-None-Match"] = "*"
            connection = HTTPConnection(target, timeout=30)
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            connection.request(self.command, self.path, body, headers)
            found = connection.getresponse()
            content = found.read()
            self.send_response(found.status)
            for name, value in found.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                    self.send_header(name, value)
            self.send_header("x-goog-generation", "1")
            length = found.getheader("content-length") if self.command == "HEAD" else str(len(content))
            self.send_header("content-length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815

        def log_message(self, format: str, *values: object) -> None:
            pass

    return Translator
