"""Validate the images that a user sends with a message.

Checks form and size. The kind of an image is detected from its bytes. Knows no store and no model.
"""

import base64
import binascii
import hashlib
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

from agentic_rag.base.errors import ImageTooLarge, ImageUnsupported, InvalidInput
from agentic_rag.base.forms import Form
from agentic_rag.base.messages import KeptImage
from agentic_rag.runtime.sent_images import SentImage
from agentic_rag.store.clock import new_id
from agentic_rag.tools.image_headers import MAX_SIDE, read_picture

MAX_IMAGES = 8
"""Maximum images of one message."""
MAX_IMAGE_BYTES = 15 * 256 * 1024
"""Maximum bytes of one image, and of all images of a message. The Messages API takes 5 MiB of base64."""


MAX_IMAGES_JSON = 8 * 1024 * 1024
"""Maximum JSON bytes of a message with its images, for every protocol."""


class GivenImage(Form):
    """An image as a client sends it: ``data`` is base64; ``mediaType``, if given, must match the content."""

    data: str
    media_type: str | None = None


class PlacedImage(GivenImage):
    """An image from another protocol's message. ``place`` names it in error texts."""

    place: str


_ALIASES: Final = {"image/jpg": "image/jpeg", "image/pjpeg": "image/jpeg", "image/x-png": "image/png", "image/*": None}
"""Other names that clients use for media types; None: the client does not say."""


def image_in(place: str, data: str, media_type: str | None) -> PlacedImage:
    """Return an image that another protocol's message carries as base64.

    Raises:
        ImageUnsupported: its media type is not an image type.
    """
    kind = (media_type or "image/*").partition(";")[0].strip().lower()
    if not kind.startswith("image/"):
        raise ImageUnsupported(place)
    return PlacedImage(data=data, media_type=_ALIASES.get(kind, kind), place=place)


def image_at(place: str, url: object, media_type: str | None = None) -> PlacedImage:
    """Return the image in a ``data:`` address. Other addresses are refused and never fetched.

    Raises:
        InvalidInput: it is another kind of address, or not base64.
        ImageUnsupported: its media type is not an image type.
    """
    head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    scheme, _, kind = head.partition(":")
    if not comma or scheme.strip().lower() != "data":
        problem = "nothing is fetched from addresses: send the image itself, as data:image/png;base64,…"
        raise InvalidInput(place, problem)
    kind, _, encoding = kind.rpartition(";")
    if encoding.strip().lower() != "base64":
        raise InvalidInput(place, "base64 is expected: data:image/png;base64,…")
    return image_in(place, unquote(data) if "%" in data else data, kind or media_type)


def read_images(images: Sequence[GivenImage]) -> list[SentImage]:
    """Return the images of a message, each under a new ref. Blocks for milliseconds to decode and hash.

    Raises:
        InvalidInput: an image is not base64, or does not match its media type.
        ImageUnsupported: an image is not PNG, JPEG, GIF or WebP.
        ImageTooLarge: an image has too many bytes or pixels, or all together have too many bytes.
    """
    bytes_left, sent = MAX_IMAGE_BYTES, []
    if len(images) > MAX_IMAGES:
        raise InvalidInput("images", f"{len(images)} images; at most {MAX_IMAGES} are possible in a message.")
    for place, image in enumerate(images):
        placed = isinstance(image, PlacedImage)
        path = image.place if isinstance(image, PlacedImage) else f"images.{place}"
        data = _decode(path if placed else f"{path}.data", image.data)
        bytes_left -= len(data)
        if bytes_left < 0:
            raise ImageTooLarge(path, f"the images of a message have at most {MAX_IMAGE_BYTES} bytes together.")
        picture = read_picture(data)
        if picture is None:
            raise ImageUnsupported(path)
        if image.media_type not in (None, picture.media_type):
            raise InvalidInput(path if placed else f"{path}.mediaType", f"the content is {picture.media_type}.")
        if max(picture.width, picture.height) > MAX_SIDE:
            raise ImageTooLarge(path, f"{picture.width}×{picture.height} pixels; a side has at most {MAX_SIDE}.")
        digest = hashlib.sha256(data).hexdigest()
        kept_image = KeptImage(new_id("ref"), picture.media_type, picture.width, picture.height, len(data), digest)
        sent.append(SentImage(kept_image, data))
    return sent


def _decode(path: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidInput(path, "base64 is expected.") from exc
