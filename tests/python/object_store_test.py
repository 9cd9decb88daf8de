"""The object-storage client against real servers: moto, and a faulty store that fails in every way it can, checks every signature
with botocore and every checksum. The program under test is $OBJECT_STORE_EXERCISE (tests/tools/object_store_exercise.cpp).
Runs with the Python of .deps/venv; names of tests on the command line select them."""
import hashlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path

from faulty_store import ID, MIB, PATIENCE, REGION, SECRET, XML, Close, FaultyStore, answers, close, close_after_work, drip, partial, raw, reset, stall

EXERCISE = os.environ.get("OBJECT_STORE_EXERCISE") or sys.exit("OBJECT_STORE_EXERCISE is not set")
NIGHT = bool(os.environ.get("INGOT_NIGHT"))
QUICK = ("--first-pause", 0.01, "--longest-pause", 0.05)


# ---------------------------------------------------------------- the program under test

def exercise(server, *args, options=(), bucket="bucket", status=0, limit=60, **variables):
    """Runs the program, asserts its exit status and returns its document, with the seconds it took."""
    home = server.folder if isinstance(server, FaultyStore) else None
    environment = {"HOME": str(home or "/nonexistent"), "PATH": os.environ["PATH"], "AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET,
                   "AWS_REGION": REGION, "AWS_ENDPOINT_URL": server.url, "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "*"}
    environment |= {k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")} | variables
    started = time.time()
    done = subprocess.run([EXERCISE, *map(str, options), bucket, *map(str, args)], capture_output=True, text=True, timeout=limit * PATIENCE,
                          env={k: v for k, v in environment.items() if v is not None})
    assert done.returncode == status, f"{args}: status {done.returncode}, not {status}\n{done.stdout}\n{done.stderr}"
    assert "Sanitizer" not in done.stderr, done.stderr
    return json.loads(done.stdout) | {"took": time.time() - started}


def expect(server, failure, words, *args, status=1, within=None, **kw):
    """The call fails in this way, and its message holds every one of the words."""
    answer = exercise(server, *args, status=status, **kw)
    assert answer["failure"] == failure, answer
    for word in words:
        assert word in answer["message"], f"'{word}' is not in: {answer['message']}"
    assert SECRET not in answer["message"]
    if within:
        assert answer["took"] < within * PATIENCE, f"took {answer['took']:.1f} s: {answer['message']}"
    return answer


def content(size, seed=1):
    return random.Random(seed).randbytes(size)


# ---------------------------------------------------------------- tests with the faulty store

SURVIVABLE = {
    "500": answers(500), "500 InternalError": answers(500, "InternalError"), "502": answers(502), "503 SlowDown": answers(503, "SlowDown"),
    "503 after a second": answers(503, "SlowDown", Retry_After="1"), "504": answers(504), "429": answers(429, "TooManyRequests"),
    "400 RequestTimeout": answers(400, "RequestTimeout"), "closed": close, "reset": reset, "garbage": raw(b"\x00\x01 not HTTP at all\r\n\r\n"),
    "half a header": raw(b"HTTP/1.1 200 OK\r\nContent-Le"), "error page of a proxy": raw(b"HTTP/1.1 503 Busy\r\nContent-Length: 27\r\n\r\n<html><p>Try later</p></htm>"),
    "endless headers": raw(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 1000) for i in range(300))),
    "endless body": raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"z" * (2 * MIB)), "negative length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello"),
    "huge length": raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nhello"),
}


def every_passing_fault_is_survived_by_every_request(_):
    """By day by two of the seven, which take turns."""
    body, commands, turn = content(300_000), ("put", "get", "multipart", "list", "remove", "remove-prefix", "head"), 0
    with FaultyStore() as store:
        for name, act in SURVIVABLE.items():
            options = (*QUICK, "--connections", 2, "--range-bytes", 100_000, "--part-bytes", 100_000, "--longest-pause", 1 if "second" in name else 0.05)
            # One of a second takes two each; to remove, a status of 200 is enough, whatever its length.
            possible = [c for c in commands if (name != "503 after a second" or c == "put") and (name, c) != ("huge length", "remove")]
            for number in range(len(possible) if NIGHT else min(2, len(possible))):
                command, turn = possible[turn % len(possible)], turn + 1
                store.reset()
                store.put("a/k", body)
                # An answer to HEAD has no body, so it cannot say what is wrong.
                store.fail(act, 2, lambda request: request.command != "HEAD" or not name.startswith("400"))
                path = store.file(body)
                arguments = {"put": ["new", path], "get": ["a/k", store.folder / "out"], "multipart": ["new", path], "list": ["a/"], "remove": ["a/k"],
                             "remove-prefix": ["a/"], "head": ["a/k"]}[command]
                answer = exercise(store, command, *arguments, options=options)
                # What follows the answer to HEAD spoils the connection for the next request, too.
                most = 4 if name == "endless body" else 2
                least = 0 if (name, command) == ("400 RequestTimeout", "head") else 2
                assert least <= answer["counters"]["retries"] <= most, (name, command, answer)
                if command in ("put", "multipart"):
                    assert store.objects["new"][0] == body, (name, command)
                if command == "get":
                    assert store.out() == body
                if command == "list":
                    assert [o["key"] for o in answer["result"]["objects"]] == ["a/k"]
                if command in ("remove", "remove-prefix"):
                    assert not store.objects
                if "second" in name and command == "put":
                    assert answer["took"] > 1.5, "Retry-After is obeyed"


def damaged_ranges_are_read_again(_):
    body = content(1_000_000)
    faults = {"closed in the middle": partial(0.5), "reset in the middle": partial(0.3, reset), "nothing sent": partial(0),
              "short with a fitting length": partial(0.5, None, content_length=125_000), "short without a length": partial(0.5, content_length="none"),
              "no number as length": partial(1, content_length="abc"), "too long": partial(1, content_length=250_010, extra=b"0123456789", then=None),
              "endless": partial(1, content_length="none", extra=b"x" * MIB), "another range": partial(1, content_range="bytes 1-250000/1000000"),
              "no range": partial(1, content_range="nonsense"), "the whole object": partial(1, status=200, content_length=250_000),
              "stalls at once": lambda request: stall(request), "stalls in the middle": partial(0.5, stall), "drips": drip}
    with FaultyStore() as store:
        for name, act in faults.items():
            store.reset()
            store.put("k", body)
            # "the whole object" for the first range would be right: there the body is what was asked for.
            store.fail(act, 2, lambda request: request.command == "GET" and not request.headers["Range"].startswith("bytes=0-"))
            answer = exercise(store, "get", "k", store.folder / "out", options=(*QUICK, "--range-bytes", 250_000, "--connections", 4, "--stall", 1))
            assert store.out() == body, name
            assert answer["counters"]["retries"] == 2 and not store.faults, (name, answer)


def lasting_faults_end_in_a_named_error(_):
    forever = 1000
    with FaultyStore() as store:
        path = store.file(b"x" * 1000)

        def check(act, failure, words, *command, options=(), within=10, requests=None):
            store.reset()
            store.put("k", b"y" * 1000)
            store.fail(act, forever)
            answer = expect(store, failure, words, *command, options=(*QUICK, "--attempts", 3, "--stall", 1, "--deadline", 6, *options), within=within)
            assert requests is None or answer["counters"]["requests"] == requests, answer

        for act, words in ((answers(503, "SlowDown"), ["HTTP 503"]), (answers(500), ["HTTP 500"]), (close, ["3 attempts"]), (reset, ["3 attempts"]),
                           (stall, ["too slow"])):
            commands = (["put", "k", path], ["get", "k", store.folder / "out"], ["head", "k"], ["list", "k"])
            for command in commands if NIGHT or act is not stall else commands[:2]:  # three seconds each
                check(act, "unavailable", ["s3://bucket/k", store.url, "gave up after 3 attempts", *words], *command, requests=3)
        check(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\ngarbage"), "broken_answer", ["no XML", "garbage", "S3-compatible"], "list", "k", requests=3)
        check(answers(200), "broken_answer", ["gave up"], "list", "k", requests=3)
        check(answers(200), "broken_answer", ["bytes 0 to 9 were asked for"], "range", "k", 0, 10, store.folder / "out", requests=3)
        check(stall, "timed_out", ["gave up after 1 attempts"], "head", "k", options=("--stall", 30, "--deadline", 1), within=3)
        for _ in range(4):  # however the deadline falls between the clock's ticks
            check(stall, "timed_out", [], "head", "k", options=("--stall", 30, "--deadline", 0.2), within=4)
        check(answers(503), "unavailable", ["gave up"], "head", "k", options=("--attempts", 100000, "--deadline", 1), within=3)
        then_silent = iter([answers(503, "SlowDown")])
        check(lambda request: next(then_silent, stall)(request), "unavailable", ["HTTP 503", "ran into the deadline", "gave up after 2 attempts"], "head", "k",
              options=("--stall", 30, "--deadline", 1), within=3, requests=2)
        check(answers(503, "SlowDown", Retry_After="1000000"), "unavailable", ["gave up"], "head", "k",
              options=("--attempts", 100000, "--deadline", 1, "--longest-pause", 20), within=3)


def what_trying_again_cannot_change_is_said_at_once(_):
    with FaultyStore() as store:
        path = store.file(b"x" * 100)
        cases = [(403, "AccessDenied", "access_denied", ["permission", "PutObject"]), (404, "NoSuchBucket", "no_such_bucket", ["create it"]),
                 (403, "InvalidAccessKeyId", "invalid_access_key", ["AWS_ACCESS_KEY_ID"]), (403, "SignatureDoesNotMatch", "signature_mismatch", ["AWS_SECRET_ACCESS_KEY"]),
                 (403, "RequestTimeTooSkewed", "clock_skew", ["clock", "this machine's"]), (400, "ExpiredToken", "expired_credentials", ["session token"]),
                 (400, "EntityTooLarge", "refused", []), (501, "NotImplemented", "refused", []), (411, "MissingContentLength", "refused", [])]
        for status, code, failure, words in cases:
            for command in (["put", "k", path], ["list", "k"], ["multipart", "k", path]):
                store.reset()
                store.fail(answers(status, code), 10)
                answer = expect(store, failure, ["s3://bucket/", f"HTTP {status} {code}", "request r1", *words], *command, within=5)
                assert answer["counters"]["requests"] == 1, answer
        for status, failure in ((403, "access_denied"), (400, "refused"), (301, "wrong_region")):
            store.reset()
            store.fail(answers(status), 10)
            assert expect(store, failure, [f"HTTP {status}"], "head", "k")["counters"]["requests"] == 1
        store.reset()
        store.fail(answers(301, "PermanentRedirect", x_amz_bucket_region="ap-south-1", Location="http://127.0.0.1:1/elsewhere"), 10)
        expect(store, "wrong_region", ["the bucket is in ap-south-1", "AWS_REGION"], "put", "k", path)
        store.reset()
        expect(store, "no_such_key", ["s3://bucket/none"], "head", "none")
        expect(store, "no_such_key", ["HTTP 404 NoSuchKey"], "range", "none", 0, 10, store.folder / "out")
        assert exercise(store, "find", "none")["result"] == {"found": False}
        store.put("k", b"0123456789")
        expect(store, "refused", ["only 10 bytes", "5 to 14"], "range", "k", 5, 10, store.folder / "out")
        expect(store, "refused", ["InvalidRange"], "range", "k", 10, 10, store.folder / "out")
        expect(store, "changed", ["replaced"], "range", "k", 0, 10, store.folder / "out", "another-etag")


def signatures_are_right_for_every_kind_of_key(_):
    keys = ["plain", "a b+c", "ü/速い/😀", "!*'();:@&=+$,?#[]", "a/./b/../c", "per%20cent%", "//two//slashes/", "tilde~-_.", "quote\"<>&", "tab\tline\n"]
    with FaultyStore() as store:
        path = store.file(content(1000))
        for key in keys:
            exercise(store, "put", key, path)
            assert key in store.objects, (key, list(store.objects))
            exercise(store, "get", key, store.folder / "out")
            assert store.out() == content(1000)
            found = exercise(store, "list", key)["result"]["objects"]
            assert [o["key"] for o in found] == [key] and found[0]["size"] == 1000
            exercise(store, "multipart", key, path)
            assert exercise(store, "remove-prefix", key)["result"] == {"removed": 1} and not store.objects
        assert store.checksums == {"x-amz-checksum-sha256", "content-md5"}
        expect(store, "signature_mismatch", ["HTTP 403 SignatureDoesNotMatch"], "put", "k", path, AWS_SECRET_ACCESS_KEY="wrong")
        expect(store, "invalid_access_key", ["AWS_PROFILE"], "put", "k", path, AWS_ACCESS_KEY_ID="unknown")
        expect(store, "wrong_region", [f"the bucket is in {REGION}"], "put", "k", path, AWS_REGION="us-east-1")
        expect(store, "settings", ["no keys", "AWS_ACCESS_KEY_ID"], "put", "k", path, AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, status=2)
        for checksum, headers in (("md5", {"content-md5"}), ("none", set())):
            store.reset()
            exercise(store, "put", "k", path, options=("--checksum", checksum))
            exercise(store, "multipart", "k", path, options=("--checksum", checksum, "--sign-payload", "no"))
            assert store.checksums == headers and store.payloads == {"signed"}, "over http payloads are always signed"


def an_expired_token_is_read_again_from_the_file(_):
    with FaultyStore() as store:
        (store.folder / ".aws").mkdir()

        file, text = store.folder / ".aws" / "credentials", f"[default]\naws_access_key_id={ID}\naws_secret_access_key={SECRET}\naws_session_token="
        none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
        store.accounts[ID] = (SECRET, "second")
        file.write_text(text + "first\n")
        expect(store, "expired_credentials", ["ExpiredToken", "session token"], "put", "k", store.file(b"x"), within=10, **none)

        # Whoever replaces the token comes after the first refusals, and leaves the file empty for a moment.
        def replace():
            file.write_text("")
            time.sleep(0.2)
            file.write_text(text + "second\n")
        store.fail(lambda request: threading.Timer(0.3, replace).start())
        answer = exercise(store, "storm", "s/", 5, options=("--threads", 4), **none)
        assert answer["result"] == {"wrong": 0} and 1 <= answer["counters"]["retries"] <= 4, answer


def a_lost_answer_does_not_hide_ones_own_object(_):
    is_put = lambda request: request.command == "PUT"
    with FaultyStore() as store:
        path = store.file(b"mine")
        exercise(store, "put", "k", path, "if-absent")
        expect(store, "already_exists", ["HTTP 412", "another process"], "put", "k", path, "if-absent")
        store.reset()
        store.fail(close_after_work, 1, is_put)
        answer = exercise(store, "put", "k", path, "if-absent", options=QUICK)
        assert answer["result"]["etag"] == hashlib.md5(b"mine").hexdigest() and answer["counters"]["retries"] == 1

        def beaten(request):  # another writer comes in between
            request.server.store.put("k", b"theirs", "their mark")
            raise Close
        store.reset()
        store.fail(beaten, 1, is_put)
        expect(store, "already_exists", ["another process"], "put", "k", path, "if-absent", options=QUICK)
        assert store.objects["k"][0] == b"theirs"
        store.reset()
        store.fail(answers(409, "ConditionalRequestConflict"), 2, is_put)
        exercise(store, "put", "k", path, "if-absent", options=QUICK)

        is_complete = lambda request: request.command == "POST" and "uploadId" in request.query
        body = content(2_000_000)
        path = store.file(body)
        store.reset()
        store.fail(close_after_work, 1, is_complete)
        answer = exercise(store, "multipart", "k", path, options=(*QUICK, "--part-bytes", 300_000))
        assert store.objects["k"][0] == body and answer["result"]["etag"] == store.objects["k"][1]

        def forgets(request):
            request.server.store.uploads.clear()
            raise Close
        store.reset()
        store.fail(forgets, 1, is_complete)
        expect(store, "no_such_upload", ["NoSuchUpload", "write the object again"], "multipart", "k", path, options=QUICK)
        # S3 may say 200 and then find an error.
        store.reset()
        store.fail(answers(200, "InternalError"), 2, is_complete)
        exercise(store, "multipart", "k", path, options=QUICK)
        assert store.objects["k"][0] == body
        store.reset()
        store.fail(answers(200, "AccessDenied"), 2, is_complete)
        expect(store, "access_denied", ["HTTP 200 AccessDenied"], "multipart", "k", path, options=QUICK)
        assert "k" not in store.objects and not store.uploads, "what was not completed is aborted"


def failed_uploads_are_aborted(_):
    with FaultyStore() as store:
        path = store.file(content(3_000_000))
        store.fail(answers(403, "AccessDenied"), 1000, lambda request: request.query.get("partNumber") == "7")
        answer = expect(store, "access_denied", ["a part of s3://bucket/k", "HTTP 403"], "multipart", "k", path, options=(*QUICK, "--part-bytes", 100_000), within=5)
        assert not store.uploads and not store.objects, answer
        store.reset()
        store.fail(stall, 2, lambda request: request.query.get("partNumber") in ("28", "29"))
        store.fail(lambda request: time.sleep(0.5) or request.error(403, "AccessDenied"), 1, lambda request: request.query.get("partNumber") == "30")
        expect(store, "access_denied", [], "multipart", "k", path, options=(*QUICK, "--part-bytes", 100_000, "--stall", 20), within=6)
        assert not store.uploads and not store.faults, "the parts under way are cancelled, not waited for"
        store.reset()
        exercise(store, "abandon", "k", path)
        assert not store.uploads and not store.objects
        exercise(store, "multipart", "k", store.file(b""))
        assert store.objects["k"][0] == b""


def hostile_listings_end(_):
    listing = lambda inner: f"{XML}<ListBucketResult>{inner}</ListBucketResult>"
    says = lambda body: lambda request: request.reply(200, body)
    entry = "<Contents><Key>{}</Key><Size>1</Size></Contents>"
    with FaultyStore() as store:
        options = (*QUICK, "--attempts", 3)
        store.fail(says(listing("<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>" + entry.format("a/b"))), 100)
        expect(store, "broken_answer", ["same page"], "list", "a/", options=options)
        store.reset()
        store.put("other/precious", b"x")
        store.fail(says(listing("<IsTruncated>false</IsTruncated>" + entry.format("other/precious"))), 100)
        expect(store, "broken_answer", ["other/precious", "begins with 'a/'"], "remove-prefix", "a/", options=options)
        assert store.objects
        store.reset()
        count = iter(range(10**9))
        store.fail(lambda request: says(listing(f"<IsTruncated>true</IsTruncated><NextContinuationToken>{next(count)}</NextContinuationToken>"))(request), 1000)
        expect(store, "broken_answer", ["does not end"], "list", "a/", options=options)
        store.reset()
        store.fail(raw(b"HTTP/1.1 200 OK\r\n\r\n" + b"<ListBucketResult>" + b"<a>" * (12 * MIB)), 100)
        expect(store, "unavailable", ["more than"], "list", "a/", options=options)


def prefixes_are_removed_in_batches(_):
    with FaultyStore() as store:
        names = [f"a/{i:04d} &<ü>" for i in range(2345)]
        for name in names + ["b", "a"]:
            store.put(name, b"x")
        store.undeletable = {names[5]: "InternalError", names[1500]: "SlowDown"}
        listing = exercise(store, "list", "a/")["result"]
        assert [o["key"] for o in listing["objects"]] == names
        answer = exercise(store, "remove-prefix", "a/", options=QUICK)
        assert answer["result"] == {"removed": 2345} and sorted(store.objects) == ["a", "b"], answer
        assert answer["counters"]["requests"] == 3 + 3 + 2, answer
        store.put("a/locked", b"x")
        store.undeletable = {"a/locked": "AccessDenied"}
        expect(store, "access_denied", ["s3://bucket/a/locked"], "remove-prefix", "a/")
        assert exercise(store, "remove-prefix", "none/")["result"] == {"removed": 0}


def connections_are_bounded_and_used_again(_):
    with FaultyStore() as store:
        body = content(20 * MIB)
        store.put("k", body)
        answer = exercise(store, "get", "k", store.folder / "out", options=("--connections", 4, "--range-bytes", MIB))
        assert store.out() == body
        assert answer["counters"]["requests"] == 21 and answer["counters"]["connections_opened"] <= 4, answer
        assert answer["counters"]["received_bytes"] == len(body)
        busy, most, lock = [0], [0], threading.Lock()

        def counted(request):
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
            time.sleep(0.02)
            with lock:
                busy[0] -= 1
            return False
        store.fail(counted, 1000)
        answer = exercise(store, "storm", "s/", 5, options=("--threads", 12, "--connections", 5))
        assert answer["result"] == {"wrong": 0} and most[0] == 5 and answer["counters"]["connections_opened"] <= 5, (answer, most)
        store.faults.clear()
        # A server that closes idle connections without a word: the next request goes over a new one.
        store.fail(lambda request: setattr(request, "close_connection", True) or False, 1000, lambda request: random.random() < 0.3)
        answer = exercise(store, "storm", "s/", 20, options=("--threads", 4, *QUICK))
        assert answer["result"] == {"wrong": 0}, answer


def https_is_verified_and_may_leave_payloads_unsigned(workspace):
    key, certificate = workspace / "key.pem", workspace / "certificate.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    with FaultyStore((certificate, key)) as store:
        body = content(400_000)
        path = store.file(body)
        answer = expect(store, "refused", ["certificate", "AWS_CA_BUNDLE"], "put", "k", path)
        assert answer["counters"]["requests"] == 1
        trusted = {"AWS_CA_BUNDLE": str(certificate)}
        exercise(store, "put", "k", path, **trusted)
        assert store.payloads == {"signed"} and store.checksums == {"x-amz-checksum-sha256"}
        store.reset()
        answer = exercise(store, "multipart", "k", path, options=("--sign-payload", "no", "--checksum", "md5", "--part-bytes", 100_000), **trusted)
        assert store.objects["k"][0] == body and store.payloads == {"UNSIGNED-PAYLOAD", "signed"} and store.checksums == {"content-md5"}
        exercise(store, "get", "k", store.folder / "out", **trusted)
        assert store.out() == body
        expect(store, "refused", ["AWS_CA_BUNDLE"], "put", "k", path, AWS_CA_BUNDLE="/nonexistent.pem")


# ---------------------------------------------------------------- tests with moto

class Moto:
    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=self.log, stderr=self.log)
        import boto3
        self.boto = boto3.client("s3", endpoint_url=self.url, aws_access_key_id=ID, aws_secret_access_key=SECRET, region_name=REGION)
        deadline = time.time() + 60 * PATIENCE
        while True:
            try:
                self.boto.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
                return self
            except Exception:
                assert self.process.poll() is None and time.time() < deadline, "moto's server did not start"
                time.sleep(0.2)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(20)

    def body(self, key):
        return self.boto.get_object(Bucket="bucket", Key=key)["Body"].read()


def moto_holds_what_was_written(workspace, moto):
    out = workspace / "out"
    for name, body in {"empty": b"", "small": b"hello", "a b/ü+&=?#%41/~": content(70_000), "big": content(12 * MIB, 2)}.items():
        path = workspace / "in"
        path.write_bytes(body)
        etag = exercise(moto, "put", name, path)["result"]["etag"]
        assert etag == hashlib.md5(body).hexdigest() and moto.body(name) == body, name
        head = exercise(moto, "head", name)["result"]
        assert head["size"] == len(body) and head["etag"] == etag and abs(head["last_modified"] - time.time()) < 100
        exercise(moto, "get", name, out, options=("--range-bytes", MIB, "--connections", 4))
        assert out.read_bytes() == body, name
    exercise(moto, "range", "big", 5 * MIB + 3, 1234, out)
    assert out.read_bytes() == content(12 * MIB, 2)[5 * MIB + 3:][:1234]
    expect(moto, "already_exists", ["412"], "put", "small", path, "if-absent")
    exercise(moto, "put", "new", path, "if-absent")
    expect(moto, "changed", ["replaced"], "range", "big", 0, 10, out, "0" * 32)
    expect(moto, "no_such_key", ["none"], "head", "none")
    expect(moto, "no_such_key", ["NoSuchKey"], "range", "none", 0, 10, out)
    expect(moto, "no_such_bucket", ["NoSuchBucket", "s3://absent"], "list", "", bucket="absent")
    expect(moto, "no_such_bucket", ["NoSuchBucket"], "put", "k", path, bucket="absent")


def moto_joins_parts(workspace, moto):
    out, path, body = workspace / "out", workspace / "in", content(33 * MIB + 17, 3)
    path.write_bytes(body)
    for checksum in ("sha256", "md5", "none"):
        answer = exercise(moto, "multipart", f"m/{checksum}", path, options=("--checksum", checksum, "--threads", 3))
        digests = b"".join(hashlib.md5(body[i:i + 5 * MIB]).digest() for i in range(0, len(body), 5 * MIB))
        assert answer["result"] == {"etag": f"{hashlib.md5(digests).hexdigest()}-7", "parts": 7}, answer
        assert moto.body(f"m/{checksum}") == body
    exercise(moto, "get", "m/sha256", out, options=("--range-bytes", 4 * MIB))
    assert out.read_bytes() == body
    (workspace / "empty").touch()
    exercise(moto, "multipart", "m/empty", workspace / "empty")
    assert moto.body("m/empty") == b""
    exercise(moto, "abandon", "m/left", path)
    begun = exercise(moto, "begin", "m/killed")["result"]["id"]
    uploads = exercise(moto, "pending", "m/", "abort")["result"]["uploads"]
    assert [(u["key"], u["id"]) for u in uploads] == [("m/killed", begun)], uploads
    assert not exercise(moto, "pending", "m/")["result"]["uploads"]


def moto_lists_and_removes(workspace, moto):
    names = sorted([f"p/{i:04d}" for i in range(1100)] + ["p/sub/a", "p/sub/b", "p/süb dir/+x", "q"], key=lambda s: s.encode())
    connection = http.client.HTTPConnection(moto.url.removeprefix("http://"))
    for name in names:  # moto looks at no signature, and boto3 takes 20 ms for one
        connection.request("PUT", "/bucket/" + urllib.parse.quote(name), b"abc")
        assert connection.getresponse().read() == b""
    listing = exercise(moto, "list", "p/", "/")["result"]
    assert listing["folders"] == ["p/sub/", "p/süb dir/"] and len(listing["objects"]) == 1100, listing["folders"]
    assert all(o["size"] == 3 and o["etag"] == hashlib.md5(b"abc").hexdigest() for o in listing["objects"])
    everything = exercise(moto, "list", "")["result"]["objects"]
    assert [o["key"] for o in everything] == names
    exercise(moto, "remove", "p/0000")
    exercise(moto, "remove", "p/0000")
    assert exercise(moto, "remove-prefix", "p/")["result"] == {"removed": len(names) - 2}
    assert [o["key"] for o in exercise(moto, "list", "")["result"]["objects"]] == ["q"]
    answer = exercise(moto, "storm", "storm/", 10, options=("--threads", 6, "--connections", 3))
    assert answer["result"] == {"wrong": 0} and answer["counters"]["requests"] == 300, answer


def moto_agrees(workspace):
    """One server for all: it takes seconds to start."""
    with Moto() as moto:
        moto_lists_and_removes(workspace, moto)
        moto_holds_what_was_written(workspace, moto)
        moto_joins_parts(workspace, moto)


TESTS = [every_passing_fault_is_survived_by_every_request, damaged_ranges_are_read_again, lasting_faults_end_in_a_named_error,
         what_trying_again_cannot_change_is_said_at_once, signatures_are_right_for_every_kind_of_key, an_expired_token_is_read_again_from_the_file,
         a_lost_answer_does_not_hide_ones_own_object, failed_uploads_are_aborted, hostile_listings_end, prefixes_are_removed_in_batches,
         connections_are_bounded_and_used_again, https_is_verified_and_may_leave_payloads_unsigned, moto_agrees]

if __name__ == "__main__":
    chosen = [t for t in TESTS if t.__name__ in sys.argv[1:]] or TESTS
    folder = Path(tempfile.mkdtemp(prefix="ingot_objects_"))
    for test in chosen:
        started = time.time()
        test(folder)
        print(f"ok {test.__name__} ({time.time() - started:.1f} s)", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
