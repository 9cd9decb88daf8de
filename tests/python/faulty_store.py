"""An S3 store in memory that can be told to fail, and that checks every signature with botocore and every checksum.
For object_store_test.py."""
import base64
import collections
import hashlib
import http.server
import os
import shutil
import socket
import ssl
import sys
import tempfile
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from xml.sax.saxutils import escape

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

PATIENCE = float(os.environ.get("OBJECT_STORE_PATIENCE", "1"))  # factor on the limits of time, for slow builds
ID, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-west-1"
MIB = 1 << 20
XML = '<?xml version="1.0" encoding="UTF-8"?>\n'

Fault = collections.namedtuple("Fault", "wants act")


class Close(Exception):
    """The connection ends without another byte."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def log_message(self, *_):
        pass

    def do_any(self):
        store = self.server.store
        self.close_connection = False
        try:
            self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url = urllib.parse.urlsplit(self.path)
            self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
            self.key = urllib.parse.unquote(url.path.removeprefix("/bucket").removeprefix("/"))
            with store.lock:
                store.log.append((self.command, self.key, self.query, dict(self.headers)))
                fault = next((f for f in store.faults if f.wants(self)), None)
                if fault:
                    store.faults.remove(fault)
            if fault and fault.act(self):
                return
            wrong = self.refusal()
            if wrong:
                return self.error(*wrong)
            with store.lock:
                answer = self.serve()
            self.reply(*answer)
        except (Close, ConnectionError, TimeoutError, ssl.SSLError):
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do_any

    def reply(self, status, body=b"", headers=None):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in ({} if status == 204 else {"Content-Length": len(body)} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def error(self, status, code, message="", headers=None):
        body = f"{XML}<Error><Code>{code}</Code><Message>{escape(message or code)}</Message><RequestId>r1</RequestId></Error>"
        return self.reply(status, body, {"Content-Type": "application/xml", "x-amz-request-id": "r1"} | (headers or {}))

    def refusal(self):
        """What a careful store objects to: the signature as botocore computes it, the digests of the body, the clock."""
        store = self.server.store
        authorization = self.headers.get("Authorization", "")
        if not authorization.startswith("AWS4-HMAC-SHA256 "):
            return 403, "AccessDenied", "no signature"
        fields = dict(part.strip().split("=", 1) for part in authorization.split(" ", 1)[1].split(","))
        signed = fields["SignedHeaders"].split(";")
        for needed in ["host", "x-amz-date", "x-amz-content-sha256"] + [h.lower() for h in self.headers if h.lower().startswith("x-amz-")]:
            if needed not in signed:
                return 403, "AccessDenied", f"{needed} is not signed"
        key_id, date, region, service, _ = fields["Credential"].split("/")
        if key_id not in store.accounts:
            return 403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
        secret, token = store.accounts[key_id]
        if token and self.headers.get("x-amz-security-token") != token:
            return 400, "ExpiredToken", "The provided token has expired."
        if region != REGION:
            return 400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; expecting '{REGION}'", {"x-amz-bucket-region": REGION}
        request = AWSRequest(method=self.command, url=f"{store.url}{self.path}", headers={h: self.headers[h] for h in signed})
        request.context["timestamp"] = self.headers["x-amz-date"]
        signer = S3SigV4Auth(Credentials(key_id, secret), service, region)
        wanted = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        if wanted != fields["Signature"]:
            return 403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided."
        payload = self.headers["x-amz-content-sha256"]
        store.payloads.add(payload if payload == "UNSIGNED-PAYLOAD" else "signed")
        if payload == "UNSIGNED-PAYLOAD":
            if not store.url.startswith("https"):
                return 400, "InvalidRequest", "an unsigned payload needs https"
        elif payload != hashlib.sha256(self.body).hexdigest():
            return 400, "XAmzContentSHA256Mismatch"
        for header, algorithm in (("x-amz-checksum-sha256", hashlib.sha256), ("content-md5", hashlib.md5)):
            if header in self.headers:
                store.checksums.add(header)
                if self.headers[header] != base64.b64encode(algorithm(self.body).digest()).decode():
                    return 400, "BadDigest"
        return None

    def serve(self):
        store, key, q = self.server.store, self.key, self.query
        mark = self.headers.get("x-amz-meta-ingot-mark", "")
        if not key:
            return self.serve_bucket()
        if self.command == "POST" and "uploads" in q:
            upload = f"id/{len(store.uploads)}+=&"
            store.uploads[upload] = (key, {}, mark)
            return 200, f"{XML}<InitiateMultipartUploadResult><UploadId>{escape(upload)}</UploadId></InitiateMultipartUploadResult>"
        if "uploadId" in q:
            if q["uploadId"] not in store.uploads:
                return self.failure(404, "NoSuchUpload")
            name, parts, mark = store.uploads[q["uploadId"]]
            assert name == key
            if self.command == "PUT":
                parts[int(q["partNumber"])] = self.body
                return 200, b"", {"ETag": f'"{hashlib.md5(self.body).hexdigest()}"'}
            del store.uploads[q["uploadId"]]
            if self.command == "DELETE":
                return 204, b""
            store.put(key, b"".join(parts[n] for n in sorted(parts)), mark, f"-{len(parts)}")
            return 200, f"{XML}<CompleteMultipartUploadResult><ETag>&quot;{store.objects[key][1]}&quot;</ETag></CompleteMultipartUploadResult>"
        if self.command == "PUT":
            if self.headers.get("If-None-Match") == "*" and key in store.objects:
                return self.failure(412, "PreconditionFailed")
            if "If-Match" in self.headers and key not in store.objects:
                return self.failure(404, "NoSuchKey")
            if "If-Match" in self.headers and self.headers["If-Match"] != f'"{store.objects[key][1]}"':
                return self.failure(412, "PreconditionFailed")
            store.put(key, self.body, mark)
            return 200, b"", {"ETag": f'"{store.objects[key][1]}"'}
        if self.command == "DELETE":
            store.objects.pop(key, None)
            return 204, b""
        if key not in store.objects:
            return self.failure(404, "NoSuchKey")
        body, etag, mark = store.objects[key]
        headers = {"ETag": f'"{etag}"', "x-amz-meta-ingot-mark": mark, "Last-Modified": "Sun, 22 Nov 2026 04:49:11 GMT"}
        if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            return self.failure(412, "PreconditionFailed")
        if self.headers.get("Range"):
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            if first >= len(body):
                return self.failure(416, "InvalidRange")
            part = body[first:last + 1]
            return 206, part, headers | {"Content-Range": f"bytes {first}-{first + len(part) - 1}/{len(body)}"}
        return 200, body, headers | {"Content-Length": len(body)}

    def serve_bucket(self):
        store, q = self.server.store, self.query
        if self.command == "POST":
            if "Content-MD5" not in self.headers:
                return self.failure(400, "InvalidRequest")
            keys = [k.text for k in ElementTree.fromstring(self.body).iter("{http://s3.amazonaws.com/doc/2006-03-01/}Key")]
            failed = "".join(f"<Error><Key>{escape(k)}</Key><Code>{store.undeletable.pop(k)}</Code><Message>m</Message></Error>"
                             for k in keys if k in store.undeletable)
            for k in keys:
                if k not in failed:
                    store.objects.pop(k, None)
            return 200, f"{XML}<DeleteResult>{failed}</DeleteResult>"
        if "uploads" in q:
            pending = "".join(f"<Upload><Key>{urllib.parse.quote_plus(key, safe='/')}</Key><UploadId>{escape(upload)}</UploadId></Upload>"
                              for upload, (key, *_) in store.uploads.items() if key.startswith(q.get("prefix", "")))
            return 200, f"{XML}<ListMultipartUploadsResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>{pending}</ListMultipartUploadsResult>"
        prefix, delimiter = q.get("prefix", ""), q.get("delimiter", "")
        names = sorted(k for k in store.objects if k.startswith(prefix))
        folders = []
        if delimiter:
            folders = sorted({prefix + k[len(prefix):].split(delimiter)[0] + delimiter for k in names if delimiter in k[len(prefix):]})
            names = [k for k in names if delimiter not in k[len(prefix):]]
        begin = int(q.get("continuation-token", "0"))
        page = names[begin:begin + store.page]
        body = "".join(f"<Contents><Key>{urllib.parse.quote_plus(k, safe='/')}</Key><Size>{len(store.objects[k][0])}</Size></Contents>" for k in page)
        body += "".join(f"<CommonPrefixes><Prefix>{urllib.parse.quote_plus(f, safe='/')}</Prefix></CommonPrefixes>" for f in folders)
        more = begin + store.page < len(names)
        token = f"<NextContinuationToken>{begin + store.page}</NextContinuationToken>" if more else ""
        return 200, f"{XML}<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>{token}{body}</ListBucketResult>"

    def failure(self, status, code):
        return status, f"{XML}<Error><Code>{code}</Code><Message>{code} it is</Message></Error>"


class FaultyStore:
    def __init__(self, certificate=None):
        self.folder = Path(tempfile.mkdtemp(prefix="ingot_objects_"))
        self.lock = threading.RLock()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.store = self
        self.server.handle_error = lambda *_: None if isinstance(sys.exc_info()[1], (OSError, ssl.SSLError)) else print(sys.exc_info(), file=sys.stderr)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.server.server_address[1]}"
        self.reset()
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def reset(self):
        self.objects, self.uploads, self.log, self.faults = {}, {}, [], []
        self.accounts, self.undeletable, self.page = {ID: (SECRET, None)}, {}, 1000
        self.payloads, self.checksums = set(), set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def put(self, key, body, mark="", suffix=""):
        self.objects[key] = (body, hashlib.md5(body).hexdigest() + suffix, mark)

    def fail(self, act, times=1, wants=lambda request: True):
        self.faults += [Fault(wants, act)] * times

    def file(self, body, name="in"):
        (self.folder / name).write_bytes(body)
        return self.folder / name

    def out(self):
        return (self.folder / "out").read_bytes()


def answers(status, code=None, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda request: request.error(status, code, headers=headers) if code else request.reply(status, headers=headers)


def close(request):
    raise Close


def reset(request):
    """Ends the connection by a TCP reset."""
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    raise Close


def close_after_work(request):
    """Does what was asked, but the answer is lost."""
    assert request.refusal() is None
    with request.server.store.lock:
        request.serve()
    raise Close


def raw(data, then=close):
    def act(request):
        request.wfile.write(data)
        return then(request)
    return act


def stall(request):
    time.sleep(30 * PATIENCE)
    raise Close


def drip(request):
    for _ in range(300):
        request.wfile.write(b"H")
        time.sleep(0.1)
    raise Close


def partial(sent, then=close, status=206, content_length=None, content_range=None, extra=b""):
    """A ranged answer of which only a share is sent."""
    def act(request):
        body = request.server.store.objects[request.key][0]
        first, last = map(int, request.headers["Range"].removeprefix("bytes=").split("-"))
        part = body[first:last + 1]
        request.send_response(status)
        request.send_header("Content-Range", content_range or f"bytes {first}-{last}/{len(body)}")
        if content_length != "none":
            request.send_header("Content-Length", len(part) if content_length is None else content_length)
        request.end_headers()
        request.wfile.write(part[:int(len(part) * sent)] + extra)
        request.wfile.flush()
        return then(request) if then else True
    return act
