"""Make an image, and show one to a model.

Prints::

    image/gif, 6 bytes
    I see: image and text
"""

from typing import assert_type

import rxllm
from rxllm import Fake, Request
from rxllm.images import FakeImages
from rxllm.values import Image, ImagePart, ImageResponse, Part, TextPart

response = rxllm.generate_image(FakeImages(Image.from_binary(b"GIF89a", "image/gif")), "a kestrel").run()
image = assert_type(response, ImageResponse).images[0]
print(f"{image.mime_type}, {len(image.to_binary())} bytes")


def look(request: Request) -> str:
    names = ["image" if isinstance(part, ImagePart) else "text" for part in request.messages[-1].parts]
    return f"I see: {' and '.join(names)}"


parts: list[Part] = [ImagePart(image), TextPart("What is this?")]
print(rxllm.generate(Fake(look), rxllm.user(parts)).run().output_text)
