"""What a store's client says, in our words. The texts are the client's own, shortened where they go on for pages."""

from __future__ import annotations

import pytest

from windlass.blobs.troubles import trouble_of
from windlass.core.errors import NotFound, StorageFull, StoreRefused, Unavailable

S3 = "s3://team/runs"
LISTED = "Generic S3 error: Error performing list request: Error performing GET http://minio:9000/team in 554µs"


def answer(status: int, code: str, message: str) -> str:
    body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>{message}</Message><Resource>/team</Resource>'
    return f"{LISTED} - Server returned non-2xx status code: {status} Forbidden: {body}\n\nDebug source:\nGeneric {{"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            answer(403, "SignatureDoesNotMatch", "Check your key."),
            f"{S3} refuses access: SignatureDoesNotMatch: Check your key",
            "check the credentials",
        ),
        (answer(400, "ExpiredToken", "It has expired."), f"{S3} refuses access: ExpiredToken", "check the credentials"),
        (
            answer(404, "NoSuchBucket", "The specified bucket does not exist"),
            f"{S3} is not there: NoSuchBucket: The specified bucket does not exist",
            "make the bucket",
        ),
        (
            "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 15ms - "
            "Server returned non-2xx status code: 403 Forbidden: denied",
            f"there are no credentials for {S3}: neither keys nor a role",
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        ),
    ],
)
def test_what_trying_again_does_not_change(text: str, message: str, hint: str) -> None:
    error = trouble_of(S3, text)
    assert isinstance(error, StoreRefused)
    assert error.message.startswith(message)
    assert "<" not in error.message
    assert hint in (error.hint or "")


def test_a_missing_bucket_is_no_missing_object() -> None:
    thing = "object s3://team/runs/a"
    assert isinstance(trouble_of(S3, answer(404, "NoSuchKey", "no"), status=404, thing=thing), NotFound)
    assert isinstance(trouble_of(S3, answer(404, "NoSuchBucket", "no"), status=404, thing=thing), StoreRefused)


def test_what_may_pass() -> None:
    for text in (answer(503, "SlowDown", "Please reduce your rate"), f"{LISTED} - HTTP error: error sending request"):
        error = trouble_of(S3, text)
        assert isinstance(error, Unavailable)
        assert not isinstance(error, StoreRefused)
        assert error.message.startswith(f"{S3} does not answer: ")
    assert isinstance(trouble_of(S3, answer(507, "InsufficientStorage", "full")), StorageFull)
